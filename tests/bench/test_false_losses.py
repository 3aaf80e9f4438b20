"""What counts as a false loss."""

from __future__ import annotations

import os
from typing import Any

from bench.false_losses import Watch, full_load
from bench.recovery_settings import WORKERS
from regroup.local.processes import descendants
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus


def status(n: int, **changes: Any) -> CoordinatorStatus:
    whole = {
        "world_size": WORKERS,
        "phase": "running",
        "message": "",
        "term": 1,
        "sequence": 1,
        "revision": 1,
    }
    return CoordinatorStatus.model_validate(
        {**whole, "generation": GenerationNumber(1, n), **changes}
    )


def seen(*statuses: CoordinatorStatus) -> Watch:
    watch = Watch()
    for one in statuses:
        watch.look(one)
    return watch


def test_a_full_generation_that_stays_has_lost_nobody() -> None:
    assert seen(status(1), status(1)).losses == 0


def test_generations_before_the_full_one_are_its_start() -> None:
    assert (
        seen(status(1, world_size=2), status(2, phase="starting"), status(2), status(2)).losses == 0
    )


def test_every_later_generation_is_a_loss() -> None:
    watch = seen(status(2), status(3, world_size=2, phase="recovering"), status(4))
    assert watch.losses == 2


def test_the_load_ends_with_its_block() -> None:
    before = len(descendants(os.getpid()))
    with full_load(30.0):
        assert len(descendants(os.getpid())) == before + len(os.sched_getaffinity(0))
    assert len(descendants(os.getpid())) == before
