# Regroup's commands. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The Python that the virtual environment is made of: 3.11, 3.12 or 3.13.
PYTHON ?= python3
# Everything that a second run need not fetch or build again.
REGROUP_CACHE ?= $(HOME)/.cache/regroup
export REGROUP_CACHE
# Imports of torch cost seconds without compiled files.
unexport PYTHONDONTWRITEBYTECODE

RUN := .venv/bin/python
# What writes generated files; each takes --check, which fails when a file is not as it would be written.
GENERATORS := regroup_operator.crd demo.dashboard
NAME ?= recovery
ARGS ?=
NODES ?= 3

.PHONY: help
help: ## Show the commands and what they do
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: venv
venv: ## Make .venv: pinned dependencies out of the cache, this clone installed editable
	@$(PYTHON) -m tools.venv

.PHONY: check
check: venv ## Check style, types, walls between packages and that generated files are fresh
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	.venv/bin/lint-imports
	@for generator in $(GENERATORS); do echo "$(RUN) -m $$generator --check"; $(RUN) -m $$generator --check; done

.PHONY: test
test: venv ## Run all tests: units, then a real API server, then a real cluster (needs root)
	@# What takes minutes on a new machine comes first, where its progress can be seen.
	@$(RUN) -m devcluster build
	@TORCH_SLIM=1 $(RUN) -m tools.images
	$(RUN) -m pytest $(ARGS)

.PHONY: test-unit
test-unit: venv ## Run the tests that need neither an API server nor a cluster
	$(RUN) -m pytest -m "not apiserver and not cluster" $(ARGS)

.PHONY: generate
generate: venv ## Write the generated files (CRD, dashboards) anew
	@for generator in $(GENERATORS); do echo "$(RUN) -m $$generator"; $(RUN) -m $$generator; done

.PHONY: requirements
requirements: venv ## Pin the dependencies of pyproject.toml anew
	$(RUN) -m tools.requirements $(ARGS)

.PHONY: image
image: venv ## Build the two images with docker, podman or buildah (TORCH_SLIM=1: for CPUs only, smaller)
	@$(RUN) -m tools.images

.PHONY: cluster
cluster: venv ## Start a real multi-node Kubernetes on this machine (NODES=3); needs root, not Docker
	@$(RUN) -m devcluster up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: venv ## Stop that Kubernetes and leave nothing of it
	@$(RUN) -m devcluster down

.PHONY: demo
demo: venv ## Train on a cluster, pull the plug of a node, and check that the training did not suffer
	@$(RUN) -m demo up

.PHONY: demo-down
demo-down: venv ## Remove what the demo made
	@$(RUN) -m demo down

.PHONY: bench
bench: venv ## Run one benchmark: make bench NAME=recovery ARGS=--quick
	@$(RUN) -m bench.$(NAME) $(ARGS)

.PHONY: clean
clean: ## Remove what was built in this folder (the cache stays)
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
