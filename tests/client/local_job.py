"""A local run under a test's control: the real coordinator, agents and ranks, watched status by status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from regroup.faults import Fault
from regroup.local import LocalRun
from regroup_trainer import history
from regroup_trainer.config import CheckpointPolicy, TrainConfig
from regroup_trainer.contract import Desired
from regroup_trainer.job_status import CoordinatorStatus, Verdict

DEADLINE_SECONDS = 280.0
"""Longer than any run here takes on a busy machine: three processes import torch before the first step."""

Act = tuple[Callable[[CoordinatorStatus], bool], Callable[[LocalRun], object]]
"""When a status is like this, do that; once, and only after what comes before it in the list."""


def make_train(steps: int, **parallelism: Any) -> TrainConfig:
    """The smallest model."""
    return TrainConfig.model_validate(
        {
            "model": {"preset": "tiny"},
            "parallelism": parallelism,
            "training": {"steps": steps, "globalBatchSize": 6, "microBatchSize": 2, "sequenceLength": 64},
        }
    )


def make_run(directory: Path, steps: int, faults: Sequence[Fault] = (), **changes: Any) -> LocalRun:
    """Three workers, two at least; a checkpoint every 20 steps."""
    fields: dict[str, Any] = {
        "revision": 1,
        "namespace": "local",
        "job": "test",
        "replicas": 3,
        "min_replicas": 2,
        "max_replicas": 4,
        "train": make_train(steps),
        "checkpoint": CheckpointPolicy(interval_steps=20),
        "directory": str(directory),
    }
    return LocalRun(Desired(**{**fields, **changes}), faults=faults)


def play(run: LocalRun, acts: Sequence[Act] = ()) -> Verdict:
    """Run to the end, acting on the way. Fails when an act's condition never came."""
    waiting = list(acts)

    def on_status(status: CoordinatorStatus) -> None:
        if waiting and waiting[0][0](status):
            waiting.pop(0)[1](run)

    async def bounded() -> Verdict:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await run.run()

    run.on_status = on_status
    verdict = asyncio.run(bounded())
    assert not waiting, "the run ended before all was done to it"
    return verdict


def at_step(step: int) -> Callable[[CoordinatorStatus], bool]:
    """A world trains, and has committed so many steps."""
    return lambda status: status.phase == "running" and status.progress is not None and status.progress.step >= step


def world_of(size: int) -> Callable[[CoordinatorStatus], bool]:
    """A world of that size trains."""
    return lambda status: status.phase == "running" and status.world_size == size


def require_whole_history(directory: Path) -> int:
    """Every step exactly once on the lineage, every sample where it belongs; returns how many."""
    assert history.audit(directory) == []
    steps = [record.step for record in history.committed(directory)]
    assert steps == list(range(1, len(steps) + 1))
    return len(steps)
