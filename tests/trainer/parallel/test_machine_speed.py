"""Measuring this machine for `regroup plan --calibrate`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from regroup_trainer.protocol.calibration import Calibration

TINY = {"layers": 2, "heads": 2, "width": 64}


def calibration(dimensions: dict[str, int], ranks: int) -> subprocess.CompletedProcess[str]:
    model = json.dumps({"name": "gpt", "dimensions": dimensions})
    command = (sys.executable, "-m", "regroup_trainer.parallel.machine_speed", "--model", model)
    options = ("--sequence-length", "64", "--ranks", str(ranks))
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_both_precisions_and_the_links_between_ranks_are_measured(ranks: int) -> None:
    ended = calibration(TINY, ranks)
    assert ended.returncode == 0, ended.stderr
    found = Calibration.model_validate_json(ended.stdout)
    assert set(found.rates) == {"bf16", "fp32"}
    assert (found.ranks, found.links is not None) == (ranks, ranks > 1)


@pytest.mark.slow
def test_a_block_that_does_not_fit_is_refused_with_its_size() -> None:
    ended = calibration({"layers": 2, "heads": 512, "width": 2**16}, ranks=1)
    assert ended.returncode == 1
    assert "one block with its gradients takes" in ended.stderr.splitlines()[-1]
