"""Measuring this machine for `regroup plan --calibrate`."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from regroup_trainer.parallel import machine_speed
from regroup_trainer.protocol.calibration import Calibration

TINY = {"layers": 2, "heads": 2, "width": 64}


def calibration(dimensions: dict[str, int], ranks: int) -> subprocess.CompletedProcess[str]:
    model = json.dumps({"name": "gpt", "dimensions": dimensions})
    command = (sys.executable, "-m", "regroup_trainer.parallel.machine_speed", "--model", model)
    options = ("--sequence-length", "64", "--ranks", str(ranks))
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_both_precisions_and_the_links_are_measured_whatever_the_end_of_a_rank(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By chance gloo aborts a process at the end of Python; here each rank is aborted."""
    ends = """
        import atexit, os, sys
        if "--multiprocessing-fork" in sys.argv:
            atexit.register(os.abort)
    """
    tmp_path.joinpath("sitecustomize.py").write_text(textwrap.dedent(ends))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ended = calibration(TINY, ranks)
    assert ended.returncode == 0, ended.stderr
    found = Calibration.model_validate_json(ended.stdout)
    assert set(found.rates) == {"bf16", "fp32"}
    assert (found.ranks, found.links is not None) == (ranks, ranks > 1)


@pytest.mark.slow
def test_a_block_that_does_not_fit_is_refused_with_its_size() -> None:
    ended = calibration({"layers": 2, "heads": 512, "width": 2**16}, ranks=1)
    assert ended.returncode == 1
    assert "one block with its gradients and copies takes" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(("preset", "ranks"), [("70b", 1), ("tiny", 10_000)])
def test_what_the_memory_does_not_hold_starts_no_rank(
    preset: str, ranks: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A block of 70b has 0.86e9 parameters: 6.8 GB with gradients, but 13.7 with what measuring
    copies. Each rank is a process with torch.
    """
    model = json.dumps({"name": "llama", "preset": preset})
    options = ["--model", model, "--sequence-length", "64", "--ranks", str(ranks)]
    monkeypatch.setattr(machine_speed, "available_bytes", lambda: 20 * 10**9)
    monkeypatch.setattr(machine_speed, "spawn", lambda *_: pytest.fail("ranks were started"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["machine_speed", *options])
    assert machine_speed.main() == 1
    assert "GB on " in capsys.readouterr().err


def test_the_name_of_the_device_needs_no_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["machine_speed", "--device-only"])
    assert machine_speed.main() == 0
    assert capsys.readouterr().out == "cpu\n"
