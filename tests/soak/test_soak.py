"""A short soak on a real cluster: twelve faults, judged by the independent checker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from soak.__main__ import BUILD
from soak.product import ROOT

SEED, FAULTS = 16410, 12
"""Draws a script with a Session and a sharded job, a power cut, a volume that is full and one that
gives errors, a job that is killed as a whole.
"""


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_twelve_faults_lose_nothing_and_leave_nothing_stuck() -> None:
    for former in BUILD.glob(f"seed-{SEED}*"):
        shutil.rmtree(former) if former.is_dir() else former.unlink()
    command = [sys.executable, "-m", "soak", "run", "--seed", str(SEED), "--faults", str(FAULTS)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, (found.stdout + found.stderr)[-8000:]
    part = json.loads((BUILD / f"seed-{SEED}.json").read_text())
    assert len(part["faults"]) == FAULTS, part["missed"]
    assert all(fault["proof"] for fault in part["faults"])
