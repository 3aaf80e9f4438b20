"""A volume that is full, read-only or frozen for a while, with real processes and file systems."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regroup.local.local_run import LocalRun
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.job_status import CoordinatorStatus, Recovery
from tests.support.disks import fill, freeze_disk, thaw_disk
from tests.support.hugging_face import llama, weights, write
from tests.support.local_job import (
    at_step,
    make_run,
    make_train,
    play,
    recovered_at,
    require_whole_history,
)
from tests.support.unresponsive_data import (
    CHECKPOINT,
    FAILING,
    OPENING,
    SAMPLES,
    UNRESPONSIVE,
    WEIGHTS,
)

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


@pytest.mark.parametrize("coordinator_dies", [True, False])
def test_a_job_whose_processes_die_while_its_folder_is_away_does_not_start_over(
    tmp_path: Path, coordinator_dies: bool
) -> None:
    """An empty folder is in its place meanwhile, as below a mount that is gone."""
    job, away = tmp_path / "job", tmp_path / "away"
    run = make_run(job, STEPS)

    def strike(run: LocalRun) -> None:
        job.rename(away)
        (job / "logs").mkdir(parents=True)
        assert not coordinator_dies or run.kill_coordinator()
        assert all(run.kill_worker(index) for index in range(3))

    def bring_back(_run: LocalRun) -> None:
        job.rename(tmp_path / "other")  # processes may still write there
        away.rename(job)

    acts = [(at_step(45), strike), (ranks_wait, bring_back)]
    assert play(run, acts).result == "completed"
    # On a busy machine, workers begin a generation before they are killed as well.
    *_, last = run.recoveries.values()
    assert last.restored_from == "Checkpoint"
    assert require_whole_history(job) == STEPS


def saving_is_refused(status: CoordinatorStatus) -> bool:
    """Whether ranks that are to end their generation wait for the volume."""
    return ranks_wait(status) and status.phase in ("resizing", "stopping")


KEEP_SEVEN = CheckpointPolicy(interval_steps=ENDLESS, memory_snapshot_steps=0, keep_last=7)
"""A policy that no generation has yet: the ranks save, and the next one begins with it."""


@pytest.mark.parametrize(
    ("strategy", "change"),
    [
        ("ddp", {"checkpoint": KEEP_SEVEN}),
        pytest.param("fsdp", {"replicas": 2}, marks=pytest.mark.long),
    ],
)
def test_a_planned_end_on_a_full_volume_costs_no_step(
    volume: Path, strategy: str, change: dict[str, Any]
) -> None:
    """Without a checkpoint and memory snapshots, the ranks alone have the state."""
    policy = KEEP_SEVEN.model_copy(update={"keep_last": 3})
    train = make_train(STEPS, strategy=strategy)
    run = make_run(volume / "job", STEPS, checkpoint=policy, train=train, max_restarts=0)
    waiting: list[str] = []

    def strike(run: LocalRun) -> None:
        fill(volume / "hog")
        run._change(**change)

    def free(run: LocalRun) -> None:
        assert run.status is not None
        assert run.status.waiting is not None
        waiting.append(run.status.waiting.reason)
        (volume / "hog").unlink()

    acts = [(at_step(25), strike), (saving_is_refused, free)]
    assert play(run, acts).result == "completed"
    assert waiting == ["VolumeUnavailable"]
    recovery = only_recovery(run)
    assert (recovery.restored_from, recovery.lost_steps) == ("Checkpoint", 0)
    assert (recovery.resumed_from_step or 0) >= 25
    assert require_whole_history(volume / "job") == STEPS


def test_a_rank_that_dies_before_a_planned_end_on_a_full_volume_costs_no_step(
    volume: Path,
) -> None:
    """Its peers have kept the state that they could not save."""
    policy = KEEP_SEVEN.model_copy(update={"keep_last": 3})
    run = make_run(volume / "job", STEPS, checkpoint=policy)

    def strike(run: LocalRun) -> None:
        fill(volume / "hog")
        run._change(checkpoint=KEEP_SEVEN)

    acts = [
        (at_step(25), strike),
        (saving_is_refused, lambda run: run.kill_rank(1)),
        (recovered_at(60), lambda _: (volume / "hog").unlink()),
    ]
    assert play(run, acts).result == "completed"
    recovery = only_recovery(run)
    assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    assert require_whole_history(volume / "job") == STEPS


def play_without(run: LocalRun, fault: str, kill: Callable[[LocalRun], object]) -> str:
    """Let reading fail as the name of the fault says, and kill something meanwhile, which is all
    that may be charged. Returns what the job reported while it waited.
    """
    run.entry = "tests.support.unresponsive_data"
    failing, waiting = Path(run.desired.directory, fault), list[str]()

    def strike(run: LocalRun) -> None:
        failing.touch()
        assert kill(run)

    def go_on(run: LocalRun) -> None:
        assert run.status is not None
        assert run.status.waiting is not None
        waiting.append(run.status.waiting.message)
        failing.unlink()

    assert play(run, [(at_step(25), strike), (ranks_wait, go_on)]).result == "completed"
    assert run.status is not None
    assert sum(run.status.ledger.restarts.values()) == 1
    assert require_whole_history(failing.parent) == STEPS
    return waiting[0]


def lose_a_rank_without_data(directory: Path, fault: str) -> str:
    """As `play_without`. No step may be lost."""
    policy = CheckpointPolicy(interval_steps=ENDLESS)
    run = make_run(directory, STEPS, checkpoint=policy, max_restarts=1)
    output = play_without(run, fault, lambda run: run.kill_rank(1))
    recovery = only_recovery(run)
    assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    return output


@pytest.mark.long
def test_a_dead_rank_costs_no_step_while_the_training_data_does_not_come(tmp_path: Path) -> None:
    """The survivors read ahead when the data stops; nobody waits for what they read."""
    assert "the training data does not come" in lose_a_rank_without_data(
        tmp_path, f"{SAMPLES}-{UNRESPONSIVE}"
    )


@pytest.mark.long
def test_errors_from_the_volume_of_the_training_data_end_no_rank(tmp_path: Path) -> None:
    """As on a soft NFS mount. A rank that dies meanwhile costs no step either."""
    output = lose_a_rank_without_data(tmp_path, f"{SAMPLES}-{FAILING}")
    assert "/data/samples.bin: Input/output error" in output


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (FAILING, "/data/opening.bin: Input/output error"),
        (UNRESPONSIVE, "the volume does not answer"),
    ],
)
def test_a_new_rank_waits_for_training_data_that_cannot_be_opened(
    tmp_path: Path, how: str, expected: str
) -> None:
    """The survivors wait for it, with their state, and its wait is neither a failure nor a hang."""
    output = lose_a_rank_without_data(tmp_path, f"{OPENING}-{how}")
    assert expected in output
    assert "stays in the memory" in output


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        pytest.param(FAILING, "/data/checkpoint.bin: Input/output error", marks=pytest.mark.long),
        (UNRESPONSIVE, "the volume does not answer"),
    ],
)
def test_ranks_wait_for_a_checkpoint_that_cannot_be_read(
    tmp_path: Path, how: str, expected: str
) -> None:
    policy = CheckpointPolicy(interval_steps=20)
    run = make_run(tmp_path, STEPS, checkpoint=policy, replicas=1, min_replicas=1, max_restarts=0)
    output = play_without(run, f"{CHECKPOINT}-{how}", lambda run: run.kill_worker(0))
    assert expected in output
    assert only_recovery(run).restored_from == "Checkpoint"


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (FAILING, "/data/weights.bin: Input/output error"),
        (UNRESPONSIVE, "the volume does not answer"),
    ],
)
def test_ranks_of_a_new_run_wait_for_the_weights_that_it_begins_with(
    tmp_path: Path, how: str, expected: str
) -> None:
    folder = write(tmp_path / "hf", weights(256), vocab_size=256)
    train = make_train(STEPS).model_copy(update={"model": llama(folder)})
    policy = CheckpointPolicy(interval_steps=ENDLESS)
    run = make_run(
        tmp_path / "job", STEPS, checkpoint=policy, train=train, replicas=2, max_restarts=0
    )
    run.entry = "tests.support.unresponsive_data"
    failing, waiting = tmp_path / "job" / f"{WEIGHTS}-{how}", list[str]()
    failing.parent.mkdir()
    failing.touch()

    def go_on(run: LocalRun) -> None:
        assert run.status is not None
        assert run.status.waiting is not None
        waiting.append(run.status.waiting.message)
        failing.unlink()

    assert play(run, [(ranks_wait, go_on)]).result == "completed"
    assert run.status is not None
    assert run.status.ledger.restarts == {}
    assert expected in waiting[0]
