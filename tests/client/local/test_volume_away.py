"""A volume that is full, read-only or frozen for a while, with real processes and file systems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regroup.local.local_run import LocalRun
from regroup_trainer.protocol.job_status import Recovery
from tests.support.disks import fill
from tests.support.local_job import at_step, make_run, play, require_whole_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system"),
]
STEPS = 200


def only_recovery(run: LocalRun) -> Recovery:
    (found,) = run.recoveries.values()
    return found


def test_a_dead_rank_costs_no_step_while_the_volume_is_full(volume: Path) -> None:
    run = make_run(volume / "job", STEPS)

    def strike(run: LocalRun) -> None:
        fill(volume / "hog")
        assert run.kill_rank(1)

    acts = [(at_step(25), strike), (at_step(60), lambda _: (volume / "hog").unlink())]
    assert play(run, acts).result == "completed"
    recovery = only_recovery(run)
    assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    assert require_whole_history(volume / "job") == STEPS
