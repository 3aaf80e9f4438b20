"""Memory snapshots in jobs on this machine: real agents hold them, real ranks and workers die."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devcluster.processes import read_proc
from regroup.local.local_run import LocalRun
from regroup.local.processes import LocalProcess
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.job_status import CoordinatorStatus, Recovery
from regroup_trainer.snapshots.places import CompletePage
from tests.support.disks import fill
from tests.support.local_job import (
    Act,
    at_step,
    losses,
    make_run,
    make_train,
    play,
    require_whole_history,
)
from tests.support.processes import open_files

pytestmark = pytest.mark.slow
STEPS = 200
"""Of the undisturbed run, more than the others take until they are suspended."""
STEPS_AFTER = 20
"""How many follow a recovery."""
ENDLESS = 1_000_000
FULL_STEPS = 30
"""With a full volume: several intervals of snapshots."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[float | None]:
    directory = tmp_path_factory.mktemp("undisturbed")
    run = make_run(
        directory, ENDLESS, replicas=1, min_replicas=1
    )  # as many steps: the learning rate depends on them
    assert play(run, [(at_step(STEPS), lambda run: run.suspend())]).result == "suspended"
    return losses(directory)[:STEPS]


def fsdp_run(directory: Path, workers: int, ranks: int, **policy: Any) -> LocalRun:
    policy = {"interval_steps": ENDLESS, "memory_snapshot_steps": 10, **policy}
    train = make_train(ENDLESS, strategy="fsdp")
    run = make_run(
        directory, 1, train=train, replicas=workers, checkpoint=CheckpointPolicy(**policy)
    )
    run.ranks = ranks
    return run


def complete_steps(run: LocalRun) -> list[int]:
    """The newest snapshot that each worker knows to be complete everywhere; 0: none."""
    return [CompletePage(private_folder(agent) / "snapshots").step for agent in run.agents.values()]


def private_folder(agent: LocalProcess) -> Path:
    """The agent has mapped a page of a file in it."""
    maps = read_proc(agent.popen.pid, "maps").splitlines()
    page = next(line.split()[5] for line in maps if line.endswith("/snapshots/complete"))
    return Path(page).parents[1]


class Strike:
    """Does something to a run as soon as all workers have a complete snapshot that suits; remembers
    of which step.
    """

    def __init__(
        self,
        strike: Callable[[LocalRun], object],
        suits: Callable[[CoordinatorStatus, int], bool] = lambda *_: True,
    ) -> None:
        self._strike = strike
        self._suits = suits
        self.run: LocalRun | None = None
        self.step = 0

    def is_time(self, status: CoordinatorStatus) -> bool:
        if not at_step(25)(status) or self.run is None:
            return False
        self.step = min(complete_steps(self.run))
        return self.step > 0 and self._suits(status, self.step)

    def act(self) -> Act:
        return self.is_time, self._strike


def strike_and_end(run: LocalRun, strike: Strike) -> Recovery:
    """Play a run to its end after the strike; returns the recovery from it."""
    strike.run = run
    outcome = play(
        run,
        [
            strike.act(),
            (has_recovered, lambda _: None),
            (has_gone_on, lambda run: run.suspend()),
        ],
    )
    assert outcome.result == "suspended"
    return next(recovery for recovery in run.recoveries.values() if recovery.cause != "resize")


def has_recovered(status: CoordinatorStatus) -> bool:
    recovery = first_recovery(status)
    return recovery is not None and recovery.down_seconds is not None


def has_gone_on(status: CoordinatorStatus) -> bool:
    """Whether it trains for some steps since it has recovered."""
    recovery = first_recovery(status)
    return recovery is not None and at_step((recovery.resumed_from_step or 0) + STEPS_AFTER)(status)


def first_recovery(status: CoordinatorStatus) -> Recovery | None:
    return next((one for one in status.recoveries if one.cause != "resize"), None)


def require_undisturbed(
    directory: Path, expected: list[float | None], strike: Strike, recovery: Recovery
) -> None:
    """Nothing of a complete snapshot was lost, and the losses are as if nothing had died."""
    resumed = recovery.resumed_from_step or 0
    assert resumed >= strike.step
    assert require_whole_history(directory) >= resumed + STEPS_AFTER
    found = losses(directory)[:STEPS]
    assert found == pytest.approx(expected[: len(found)], rel=1e-5)


def test_ranks_that_died_go_on_from_their_agents_memory(
    tmp_path: Path, undisturbed: list[float | None]
) -> None:
    strike = Strike(lambda run: run.kill_rank(1))
    recovery = strike_and_end(fsdp_run(tmp_path, workers=2, ranks=2), strike)
    assert recovery.restored_from == "Snapshot"
    require_undisturbed(tmp_path, undisturbed, strike, recovery)


@pytest.mark.long
def test_a_lost_workers_shards_come_from_its_neighbour(
    tmp_path: Path, undisturbed: list[float | None]
) -> None:
    strike = Strike(lambda run: run.kill_worker(1))
    recovery = strike_and_end(fsdp_run(tmp_path, workers=3, ranks=1), strike)
    assert recovery.restored_from == "Snapshot"
    require_undisturbed(tmp_path, undisturbed, strike, recovery)


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
def test_snapshots_do_without_the_volume_and_bring_the_steps_that_it_lacks(volume: Path) -> None:
    run = fsdp_run(volume / "job", workers=2, ranks=1)
    full_since: list[int] = []

    def fill_volume(run: LocalRun) -> None:
        assert run.status is not None
        assert run.status.progress is not None
        fill(volume / "hog")
        full_since.append(run.status.progress.step)

    # Rank 0 goes, and the lines of the history that wait in its memory.
    strike = Strike(
        lambda run: run.kill_rank(0), lambda _status, step: step >= full_since[0] + FULL_STEPS
    )
    strike.run = run
    acts = [
        (at_step(25), fill_volume),
        strike.act(),
        (has_recovered, lambda _: (volume / "hog").unlink()),
        (at_step(STEPS), lambda run: run.suspend()),
    ]
    assert play(run, acts).result == "suspended"
    recovery = next(iter(run.recoveries.values()))
    assert recovery.restored_from == "Snapshot"
    assert (recovery.resumed_from_step or 0) >= strike.step
    assert require_whole_history(volume / "job") >= STEPS


@pytest.mark.long
def test_memory_that_was_damaged_leaves_the_state_to_the_checkpoint(tmp_path: Path) -> None:
    def kill_and_damage(run: LocalRun) -> None:
        run.kill_rank(1)
        for agent in run.agents.values():
            damage_snapshots(agent)

    def follows_a_checkpoint(status: CoordinatorStatus, step: int) -> bool:
        saved = status.checkpoint.step if status.checkpoint else 0
        return 0 < saved < step < saved + 40

    run = fsdp_run(tmp_path, workers=2, ranks=1, interval_steps=60)
    recovery = strike_and_end(run, Strike(kill_and_damage, follows_a_checkpoint))
    require_whole_history(tmp_path)
    assert recovery.restored_from == "Checkpoint"
    assert run.status is not None
    assert any(event.reason == "SnapshotPassedOver" for event in run.status.events)


def damage_snapshots(agent: LocalProcess) -> None:
    """Flip the bits of all snapshots that an agent holds."""
    links = open_files(agent.popen.pid, "memfd:snapshot-tensors")
    assert links
    for link in links:
        content = link.read_bytes()
        link.write_bytes(bytes(255 - byte for byte in content))
