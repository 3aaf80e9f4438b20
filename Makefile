# Regroup's commands. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The Python of the virtual environment. pyproject.toml lists the supported versions.
PYTHON ?= python3
# The cache of downloads and builds.
REGROUP_CACHE ?= $(HOME)/.cache/regroup
export REGROUP_CACHE
# Without compiled files, importing torch takes seconds.
unexport PYTHONDONTWRITEBYTECODE

RUN := .venv/bin/python
# The modules that write generated files. With --check, each fails when its file is out of date.
GENERATORS := regroup_operator.api.crd demo.dashboard devcluster.pod_schema \
  tools.conversion_tables tools.reference_pages tools.chart_pages
NAME ?= recovery
ARGS ?=
NODES ?= 3
SEED ?= 1
FAULTS ?= 20
JOBS ?= 2000
TEMPLATES ?= 6000

.PHONY: help
help: ## Show the commands and what they do
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: ## Create .venv: pinned dependencies from the cache, this clone installed editable
	@$(PYTHON) -m tools.venv

.PHONY: check
check: venv ## Check style, types, layout, import layers and that generated files are up to date
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy --cache-dir $(REGROUP_CACHE)/mypy
	.venv/bin/lint-imports
	$(RUN) -m pytest --quiet tests/test_repository.py
	@if command -v go > /dev/null; then \
		echo "go vet bench/scale/agents"; cd bench/scale/agents && CGO_ENABLED=0 go vet .; fi
	@for generator in $(GENERATORS); do echo "$(RUN) -m $$generator --check"; $(RUN) -m $$generator --check; done

.PHONY: test
test: prepare ## Run the tests: unit tests, with a real API server, on a real cluster (needs root)
	$(RUN) -m pytest -n auto -m "not long" $(ARGS)

.PHONY: test-long
test-long: test-long-local test-long-cluster ## Run the long tests: benchmarks, lost nodes (needs root)

.PHONY: test-long-local
test-long-local: prepare ## Run the long tests that need no cluster
	$(RUN) -m pytest -n auto -m "long and not cluster" $(ARGS)

.PHONY: test-long-cluster
test-long-cluster: prepare ## Run the long tests on a cluster
	@$(RUN) -m devcluster build --policies > /dev/null
	$(RUN) -m pytest -m "long and cluster" $(ARGS)

# The slow steps of a new machine come before the tests, because their progress is visible here.
# Go compiles while packages are fetched and layers are written.
.PHONY: prepare
prepare: venv ## Build what the tests with a cluster need: programs and images
	@$(MAKE) --jobs 2 programs image TORCH_SLIM=1

.PHONY: test-local
test-local: venv ## Run the tests that need neither an API server nor a cluster
	$(RUN) -m pytest -n auto -m "not apiserver and not cluster and not long" $(ARGS)

.PHONY: test-unit
test-unit: venv ## Run the quick ones of these: no rank starts, nothing takes ten seconds
	$(RUN) -m pytest -n auto -m "not (apiserver or cluster or long or slow or ranks)" $(ARGS)

.PHONY: test-python
test-python: ## Run check and test-local under another Python, in a chroot (PYTHON=3.14; needs root)
	@python3 -m tools.python_tests $(PYTHON)

.PHONY: generate
generate: venv ## Write the generated files (CRD, dashboards, types of Kubernetes)
	@for generator in $(GENERATORS); do echo "$(RUN) -m $$generator"; $(RUN) -m $$generator; done

.PHONY: requirements
requirements: venv ## Pin the dependencies of pyproject.toml
	$(RUN) -m tools.requirements $(ARGS)

.PHONY: image
image: venv ## Build the two images with docker, podman or buildah (TORCH_SLIM=1: smaller, for CPUs only)
	@$(RUN) -m tools.images

.PHONY: programs
programs: venv ## Build Kubernetes and the other programs of a cluster from source
	@$(RUN) -m devcluster build

.PHONY: cluster
cluster: venv ## Start a real multi-node Kubernetes on this machine (NODES=3); needs root, not Docker
	@$(RUN) -m devcluster up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: venv ## Stop and remove that Kubernetes
	@$(RUN) -m devcluster down

.PHONY: try
try: venv ## Train on this machine while a worker and the coordinator are killed (no root, no cluster)
	@$(RUN) -m demo.trial

.PHONY: demo
demo: venv ## Train on a cluster, cut the power of a node, and check that the training did not suffer
	@$(RUN) -m demo up

.PHONY: walkthrough
walkthrough: venv ## Walk through the documentation as a new user, on a fresh cluster (needs root)
	@$(RUN) -m demo.walkthrough $(ARGS)

.PHONY: dashboards
dashboards: venv ## Draw docs/pictures: each dashboard with the recorded history of a run with faults
	@TZ=UTC $(RUN) -m demo.pictures

.PHONY: demo-down
demo-down: venv ## Remove the clusters and processes of the demo
	@$(RUN) -m demo down

.PHONY: faults
faults: venv ## Break a job in ten ways on a cluster and write docs/tasks/ten-faults.md (needs root)
	@$(RUN) -m demo.ten_faults $(ARGS)

.PHONY: alerts
alerts: venv ## Cause the other alerts on a cluster and write docs/runbooks/fired-alerts.md (needs root)
	@$(RUN) -m demo.caused_alerts $(ARGS)

.PHONY: docs
docs: venv ## Build the documentation site in build/site
	@$(RUN) -m sphinx --quiet --fail-on-warning --keep-going -b html -c docs . build/site
	@echo "build/site/index.html"

.PHONY: bench
bench: venv ## Run one benchmark: make bench NAME=recovery ARGS=--quick
	@$(RUN) -m bench.$(NAME) $(ARGS)

.PHONY: soak
soak: venv ## Inject random faults on a cluster: make soak SEED=1 FAULTS=50 [HOURS=2] (needs root)
	@$(RUN) -m soak run --seed $(SEED) --faults $(FAULTS) $(if $(HOURS),--hours $(HOURS)) $(ARGS)

.PHONY: fuzz
fuzz: venv ## Draw hostile jobs for a real API server and operator: make fuzz SEED=1 JOBS=2000 TEMPLATES=6000
	@$(RUN) -m bench.fuzz --seed $(SEED) --jobs $(JOBS) --templates $(TEMPLATES) $(ARGS)

.PHONY: clean
clean: ## Remove build outputs from this folder (the cache stays)
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
