"""A local run under a test's control: the real coordinator, agents and ranks, watched status by
status.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from regroup.local.faults import Fault
from regroup.local.local_run import LocalRun
from regroup_trainer.checkpoint import history
from regroup_trainer.protocol.config import CheckpointPolicy, TrainConfig
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.job_status import CoordinatorStatus, Outcome

DEADLINE_SECONDS = 280.0
"""Longer than any run here takes on a busy machine: three processes import torch before the first
step.
"""

Act = tuple[Callable[[CoordinatorStatus], bool], Callable[[LocalRun], object]]
"""When a status is like this, do that; once, and only after what comes before it in the list."""


def make_train(steps: int, **parallelism: Any) -> TrainConfig:
    """A configuration that trains the smallest model for `steps` steps."""
    return TrainConfig.model_validate(
        {
            "model": {"preset": "tiny"},
            "parallelism": parallelism,
            "training": {
                "steps": steps,
                "globalBatchSize": 6,
                "microBatchSize": 2,
                "sequenceLength": 64,
            },
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


def play(run: LocalRun, acts: Sequence[Act] = ()) -> Outcome:
    """Run to the end, acting on the way. Fails when an act's condition never came."""
    waiting = list(acts)

    def on_status(status: CoordinatorStatus) -> None:
        if waiting and waiting[0][0](status):
            waiting.pop(0)[1](run)

    async def bounded() -> Outcome:
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await run.run()

    run.on_status = on_status
    try:
        outcome = asyncio.run(bounded())
    except TimeoutError:
        pytest.fail(f"no end, with {len(waiting)} of {len(acts)} acts to come, at {run.status}")
    assert not waiting, "the run ended before all was done to it"
    return outcome


def at_step(step: int) -> Callable[[CoordinatorStatus], bool]:
    """A generation trains, and has committed so many steps."""
    return lambda status: (
        status.phase == "running" and status.progress is not None and status.progress.step >= step
    )


def recovered_at(step: int) -> Callable[[CoordinatorStatus], bool]:
    """As `at_step`, after a recovery. Seconds lie between two statuses, and hundreds of steps."""
    return lambda status: bool(status.recoveries) and at_step(step)(status)


def trains_with(size: int) -> Callable[[CoordinatorStatus], bool]:
    """A generation of so many ranks trains."""
    return lambda status: status.phase == "running" and status.world_size == size


def kill_worker_for_a_while(run: LocalRun, index: int) -> None:
    """Kill a worker, and replace none until `release_replacements`: however busy the machine, the
    smaller generation is seen.
    """
    run.replace_seconds = math.inf
    run.kill_worker(index)


def release_replacements(run: LocalRun) -> None:
    """Replace the workers that are gone, now and from now on."""
    run.replace_seconds = 0.0


def late_workers(run: LocalRun) -> set[str]:
    """The workers whose ranks were killed because they did not leave a broken generation in time.

    Now and then gloo does not wake who sends to a dead rank: docs/design/0004.
    """
    logs = Path(run.desired.directory, "logs").glob("*.log")
    return {log.stem for log in logs if "did not leave its generation" in log.read_text()}


def losses(directory: Path) -> list[float | None]:
    """The losses of the committed steps, in order."""
    return [record.loss for record in history.committed(directory)]


def require_whole_history(directory: Path) -> int:
    """Every step exactly once on the lineage, every sample where it belongs; returns how many."""
    assert history.audit(directory) == []
    steps = [record.step for record in history.committed(directory)]
    assert steps == list(range(1, len(steps) + 1))
    return len(steps)
