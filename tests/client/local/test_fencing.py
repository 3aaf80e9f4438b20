"""A member that comes back after it was declared lost: real processes, stopped and continued."""

from __future__ import annotations

from pathlib import Path

import pytest

from regroup.local.local_run import LocalRun
from regroup.local.processes import descendants, find_rank
from regroup_trainer.checkpoint import catalog, lineage
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus
from tests.support import held_save
from tests.support.local_job import (
    at_step,
    make_run,
    make_train,
    play,
    require_whole_history,
    trains_with,
)
from tests.support.processes import freeze, thaw
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
ENDLESS = 1_000_000


class Freezer:
    """Stops the worker of rank 0, which writes the history and publishes checkpoints, and lets it
    go on.
    """

    def __init__(self) -> None:
        self.member = ""
        self._agent = 0
        self._below: list[int] = []
        self.rank = 0
        """Process id."""

    def freeze(self, run: LocalRun) -> None:
        assert run.status is not None
        place = next(member for member in run.status.members if member.rank == 0)
        agent = run.agents[place.index]
        self.member = place.member
        self._agent, self.rank = agent.popen.pid, find_rank(agent, 0) or 0
        self._below = descendants(self._agent)
        freeze([self._agent, *self._below])

    def thaw(self, _run: LocalRun) -> None:
        """Freeze the rank first, so that its agent cannot act before it is frozen too."""
        thaw([self.rank, *self._below, self._agent])

    def is_back(self, status: CoordinatorStatus) -> bool:
        """Whether it trains again, with all workers."""
        places = {member.member: member.rank for member in status.members if not member.lost}
        return trains_with(3)(status) and places.get(self.member) is not None


def test_a_rank_0_that_is_frozen_within_a_save_replaces_none_of_the_others(tmp_path: Path) -> None:
    """It has seen that no generation is newer, and wakes when one has published the same step, of
    another state.
    """
    policy = CheckpointPolicy(interval_steps=2, keep_last=1000, memory_snapshot_steps=0)
    train = make_train(
        ENDLESS, strategy="fsdp"
    )  # no copy of what rank 0 holds, so the others go back
    run = make_run(tmp_path, ENDLESS, checkpoint=policy, timeout_milliseconds=5000, train=train)
    run.entry = "tests.support.held_save"
    freezer, layout = Freezer(), Layout(tmp_path)

    def publisher() -> GenerationNumber | None:
        manifest = catalog.read_candidate(layout, held_save.STEP).manifest
        return manifest.generation if manifest else None

    def wake(run: LocalRun) -> None:
        """Its agent only after it has tried."""
        before = publisher()
        thaw([freezer.rank])
        (tmp_path / held_save.GO_ON).touch()
        tried = tmp_path / held_save.TRIED
        assert (
            wait_until("the late publisher", lambda: tried.exists() and tried.read_text())
            == "FencedError"
        )
        assert publisher() == before
        freezer.thaw(run)

    outcome = play(
        run,
        [
            (lambda _: (tmp_path / held_save.HELD).exists(), freezer.freeze),
            (lambda status: trains_with(2)(status) and publisher() is not None, wake),
            (freezer.is_back, lambda run: run.suspend()),
        ],
    )
    assert outcome.result == "suspended"
    require_whole_history(tmp_path)


def test_a_frozen_rank_0_that_comes_back_can_write_nothing_that_counts(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, ENDLESS, checkpoint=CheckpointPolicy(interval_steps=2), timeout_milliseconds=5000
    )
    freezer = Freezer()
    ahead: list[int] = []

    def others_are_ahead(status: CoordinatorStatus) -> bool:
        """By some checkpoints, which the one that comes back must not replace."""
        if not trains_with(2)(status) or status.progress is None or status.checkpoint is None:
            return False
        ahead.append(status.checkpoint.step)
        return status.checkpoint.step >= ahead[0] + 6

    outcome = play(
        run,
        [
            (lambda status: trains_with(3)(status) and at_step(10)(status), freezer.freeze),
            (others_are_ahead, freezer.thaw),
            (freezer.is_back, lambda run: run.suspend()),
        ],
    )
    assert outcome.result == "suspended"
    require_whole_history(tmp_path)
    layout = Layout(tmp_path)
    links = lineage.chain(lineage.read(layout), max(lineage.read(layout)))
    published = catalog.published(layout)
    assert published
    assert catalog.on_lineage(published, links) == published
