"""Commands of the pages that need neither a cluster nor ranks: they are typed as they stand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from regroup.cli.manifest import read_documents
from regroup.cli.validation import validate
from tests.support.documented_commands import ROOT, first_job
from tests.support.page_terminal import PageTerminal
from tests.support.small_foreign_jobs import IMAGE_NET, PYTORCH_JOB, RUNTIME, TRAIN_JOB

pytestmark = pytest.mark.timeout(900)
LOCAL_PAGE = ROOT / "docs/start/this-machine.md"
RAY_JOB = """\
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: fashion}
spec:
  entrypoint: python train.py
  rayClusterSpec:
    headGroupSpec:
      template: {spec: {containers: [{name: head, image: "ray:1"}]}}
    workerGroupSpecs:
      - groupName: workers
        replicas: 2
        template: {spec: {containers: [{name: worker, image: "ray:1"}]}}
"""
BATCH = (
    "#!/bin/bash\n#SBATCH --job-name=llama --nodes=4 --gpus-per-node=8\nsrun torchrun train.py\n"
)
FILES = {
    "pytorchjob.yaml": PYTORCH_JOB,
    "imagenet.yaml": IMAGE_NET,
    "trainjob.yaml": TRAIN_JOB,
    "runtime.yaml": RUNTIME,
    "rayjob.yaml": RAY_JOB,
    "train.sbatch": BATCH,
}

EPOCHS = "regroup convert -- torchrun --nnodes 2 --nproc-per-node 8 train.py --epochs 5 > job.yaml"
IMAGENET = "regroup convert imagenet.yaml -o job.yaml"
TORCHRUN = (
    "regroup convert -- torchrun --nnodes 2 --rdzv-endpoint=host:29500 --tee 3 train.py > job.yaml"
)
SENTENCES = {
    IMAGENET: (
        "imagenet.yaml:7: spec.elasticPolicy.rdzvBackend: 'c10d' is left out: the job brings its",
        "imagenet.yaml: spec.checkpoint.storage: claim checkpoints is added, since workers share",
    ),
    TORCHRUN: (
        "command line:1: --rdzv-endpoint=host:29500 is left out: the job brings its own rendezvous",
        "command line:1: --tee=3 is left out: only launcher torchrun supports it",
    ),
}
"""What the pages have a command print."""


@pytest.fixture
def terminal(tmp_path: Path) -> PageTerminal:
    """A shell beside the files that the pages name."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return PageTerminal(tmp_path, {"COLUMNS": "100"})


@pytest.mark.parametrize(
    ("text", "name", "replicas"),
    [
        ("regroup convert pytorchjob.yaml > job.yaml", "mnist", 2),
        (IMAGENET, "elastic-example-imagenet", 2),
        ("regroup convert rayjob.yaml > job.yaml", "fashion", 2),
        ("regroup convert train.sbatch --image my/image:1 > job.yaml", "llama", 4),
        (
            "regroup convert -- srun -N 4 --gpus-per-node 8 torchrun train.py > job.yaml",
            "train", 4,
        ),
        (EPOCHS, "train", 2),
        (TORCHRUN, "train", 2),
        ("regroup convert trainjob.yaml runtime.yaml > job.yaml", "bert", 2),
    ],
)  # fmt: skip
def test_what_is_converted_is_a_valid_job(
    terminal: PageTerminal, text: str, name: str, replicas: int
) -> None:
    shown = " ".join(terminal.type(text).split())
    assert all(sentence in shown for sentence in SENTENCES.get(text, ()))
    made = yaml.safe_load((terminal.folder / "job.yaml").read_text())
    assert (made["metadata"]["name"], made["spec"]["replicas"]) == (name, replicas)
    (document,) = read_documents(terminal.folder / "job.yaml")
    assert validate(document) == []


@pytest.mark.parametrize(
    "text",
    [
        "regroup plan --params 100e9 --nodes 8 --gpus-per-node 8 --gpu a100-80",
        "regroup plan --model llama:70b --nodes 16 --gpu h100-80",
        "regroup plan job.yaml --gpu l40s",
    ],
)
def test_a_plan_recommends_a_layout_and_prints_its_job(terminal: PageTerminal, text: str) -> None:
    (terminal.folder / "job.yaml").write_text(first_job(LOCAL_PAGE))
    shown = terminal.type(text)
    assert "recommended" in shown
    assert "kind: TrainingJob" in shown


def test_a_calibrated_plan_wants_the_machine_that_it_is_for(terminal: PageTerminal) -> None:
    """`test_plan_command.py` measures this machine, for a plan of its kind."""
    text = "regroup plan --model llama:8b --nodes 4 --gpu h200-141 --calibrate"
    code, shown = terminal.try_to_type(text, seconds=240)
    assert code == 0 or "and the plan is for h200-141" in " ".join(shown.split())


def test_the_environment_of_the_clone_has_the_commands(terminal: PageTerminal) -> None:
    """It is the one under test."""
    (terminal.folder / ".venv").symlink_to(sys.prefix)
    (terminal.folder / "job.yaml").write_text(first_job(LOCAL_PAGE))
    shown = terminal.type("source .venv/bin/activate", "regroup validate job.yaml")
    assert "job.yaml: TrainingJob gpt is valid" in shown
    shown = terminal.type("regroup validate FILE", changes={"FILE": "job.yaml"})
    assert "job.yaml: TrainingJob gpt is valid" in shown


def test_make_lists_its_targets(terminal: PageTerminal) -> None:
    (terminal.folder / "Makefile").symlink_to(ROOT / "Makefile")
    shown = terminal.type("make help")
    assert all(f"  {target} " in shown for target in ("check", "try", "demo"))
