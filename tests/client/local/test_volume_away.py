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
from tests.support.silent_data import FAILING, SILENT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system"),
]
STEPS = 200
ENDLESS = 1_000_000


def only_recovery(run: LocalRun) -> Recovery:
    (found,) = run.recoveries.values()
    return found


def ranks_wait(status: CoordinatorStatus) -> bool:
    """Whether a generation that has begun waits for the volume."""
    found = status.waiting
    return found is not None and "waits for the volume" in found.message


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


def lose_a_rank_without_data(directory: Path, marker: str) -> str:
    """Let the training data fail as the marker says, and a rank die meanwhile; no step may be lost.
    Returns what the job said while it waited.
    """
    run = make_run(directory, STEPS, checkpoint=CheckpointPolicy(interval_steps=ENDLESS))
    run.entry = "tests.support.silent_data"
    failing, waiting = directory / marker, list[str]()

    def strike(run: LocalRun) -> None:
        failing.touch()
        assert run.kill_rank(1)

    def go_on(run: LocalRun) -> None:
        assert run.status is not None
        assert run.status.waiting is not None
        waiting.append(run.status.waiting.message)
        failing.unlink()

    assert play(run, [(at_step(25), strike), (ranks_wait, go_on)]).result == "completed"
    recovery = only_recovery(run)
    assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    assert require_whole_history(directory) == STEPS
    return waiting[0]


def test_a_dead_rank_costs_no_step_while_the_training_data_does_not_come(tmp_path: Path) -> None:
    """The survivors read ahead when the data stops; nobody waits for what they read."""
    assert "the training data does not come" in lose_a_rank_without_data(tmp_path, SILENT)


def test_errors_from_the_volume_of_the_training_data_end_no_rank(tmp_path: Path) -> None:
    """As on a soft NFS mount. A rank that dies meanwhile costs no step either."""
    said = lose_a_rank_without_data(tmp_path, FAILING)
    assert "/data/train.bin: Input/output error" in said
