"""A volume that is full, read-only or frozen for a while, with real processes and file systems."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from regroup.local.local_run import LocalRun
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.job_status import CoordinatorStatus, Recovery
from tests.support.disks import fill, freeze_disk, thaw_disk
from tests.support.local_job import at_step, make_run, play, require_whole_history

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system"),
]
STEPS = 200
ENDLESS = 1_000_000


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


def test_a_dead_rank_costs_no_step_while_the_volume_does_not_answer(
    freezing_volume: Path,
) -> None:
    """The survivors wait with their state, and go on by themselves."""
    volume = freezing_volume
    policy = CheckpointPolicy(interval_steps=ENDLESS)
    run = make_run(volume / "job", STEPS, checkpoint=policy)
    waiting: list[str] = []

    def strike(run: LocalRun) -> None:
        freeze_disk(volume)
        assert run.kill_rank(1)

    def ranks_wait(status: CoordinatorStatus) -> bool:
        found = status.waiting
        return found is not None and "waits for the volume" in found.message

    def thaw(run: LocalRun) -> None:
        assert run.status is not None
        assert run.status.waiting is not None
        waiting.append(run.status.waiting.reason)
        thaw_disk(volume)

    acts = [(at_step(25), strike), (ranks_wait, thaw)]
    assert play(run, acts).result == "completed"
    assert waiting == ["VolumeUnavailable"]
    recovery = only_recovery(run)
    assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    assert require_whole_history(volume / "job") == STEPS
