"""Runs on this machine that pages about something else have users type, with smaller jobs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.documented_commands import ROOT
from tests.support.otlp_receiver import OtlpReceiver, traces_of
from tests.support.page_terminal import PageTerminal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
SAMPLE = "manifests/samples/gpt-demo.yaml"
SECONDS = 800.0
"""For a run, on a busy machine."""
EPOCHS = """
import pathlib, os, time
folder = pathlib.Path(os.environ["REGROUP_DIRECTORY"])
for epoch in range(int(os.environ["EPOCHS"])):
    print("epoch", epoch, "on", os.environ["WORLD_SIZE"], "ranks", flush=True)
    time.sleep(0.2)
"""
"""It saves nothing: each start begins with the first epoch. One takes a fifth of a second."""
TORCHRUN = """
apiVersion: regroup.dev/v1alpha1
kind: TrainingJob
metadata: {name: digits}
spec:
  launcher: torchrun
  replicas: 2
  template:
    spec:
      containers:
        - name: trainer
          command: [python, train.py]
          env: [{name: EPOCHS, value: "EPOCHS_OF_THE_TEST"}]
"""


@pytest.fixture
def terminal(tmp_path: Path) -> PageTerminal:
    """A shell beside a script."""
    (tmp_path / "train.py").write_text(EPOCHS)
    return PageTerminal(tmp_path, {"EPOCHS": "3"})


def test_the_first_run_of_the_front_page_survives_its_kill(tmp_path: Path) -> None:
    """With the environment under test as `.venv`, and the sample with the smallest model."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    job = tmp_path / SAMPLE
    job.parent.mkdir(parents=True)
    smaller = (ROOT / SAMPLE).read_text().replace("preset: 1m", "preset: tiny")
    assert "steps: 500" in smaller
    job.write_text(smaller.replace("steps: 500", "steps: 200"))
    text = ".venv/bin/regroup run manifests/samples/gpt-demo.yaml --kill worker=0@step=120"
    shown = PageTerminal(tmp_path).type(text, seconds=SECONDS)
    assert "killed worker 0 at step 120" in shown
    assert "completed: 200 steps" in shown


def convert(terminal: PageTerminal) -> None:
    """Make the job that runs the script with two workers."""
    terminal.type(
        "regroup convert -- torchrun --nnodes 2 --rdzv-endpoint=host:29500 --tee 3 train.py "
        "> job.yaml"
    )


@pytest.mark.long
def test_a_converted_command_line_runs_here(terminal: PageTerminal) -> None:
    convert(terminal)
    shown = terminal.type("regroup run job.yaml", seconds=SECONDS)
    assert "rank 0: epoch 2 on 2 ranks" in shown
    assert "completed" in shown


@pytest.mark.long
def test_the_traces_of_a_run_here_arrive(terminal: PageTerminal) -> None:
    convert(terminal)
    text = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 regroup run job.yaml"
    with OtlpReceiver() as receiver:
        terminal.type(text, changes={"http://127.0.0.1:4318": receiver.url}, seconds=SECONDS)
    assert traces_of(receiver.spans)


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "epochs", "prints"),
    [
        ("regroup run job.yaml --kill worker=1@seconds=20", 200, "killed worker 1"),
        ('regroup run job.yaml --kill "rank=0@line=epoch 5 on"', 20, "killed rank 0 at 'epoch 5"),
    ],
)
def test_stock_torchrun_survives_a_kill_here(
    terminal: PageTerminal, text: str, epochs: int, prints: str
) -> None:
    """A run that ends before its kill would fail: the ranks take longer than that."""
    job = TORCHRUN.replace("EPOCHS_OF_THE_TEST", str(epochs))
    (terminal.folder / "job.yaml").write_text(job)
    shown = terminal.type(text, seconds=SECONDS)
    assert prints in shown
    assert "completed: workers that ended well: 2" in shown
