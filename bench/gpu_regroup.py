"""Subject `regroup` of bench/gpu.py: the local mode with one rank, coordinator, agent and all that
a job has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.gpu_job import Job
from regroup.local.local_run import LocalRun
from regroup_trainer.protocol.config import (
    CheckpointPolicy,
    DataConfig,
    OptimizerConfig,
    TrainConfig,
    TrainingConfig,
)
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.rank_messages import Progress

NEVER = 10**6
RECOVER_SECONDS = 300.0


def desired(job: Job, folder: Path) -> Desired:
    """The job for one worker."""
    return Desired(
        revision=1,
        namespace="bench",
        job="gpu",
        replicas=1,
        min_replicas=1,
        max_replicas=1,
        train=TrainConfig(
            model=job.config,
            data=DataConfig(source="synthetic", classes=job.classes),
            optimizer=OptimizerConfig(learning_rate=3e-4),
            training=TrainingConfig(
                steps=job.steps,
                global_batch_size=job.micro_batch * job.accumulation,
                micro_batch_size=job.micro_batch,
                sequence_length=job.length,
                precision="bf16",
                compile=job.compile,
            ),
        ),
        checkpoint=CheckpointPolicy(interval_steps=job.save_every or NEVER),
        directory=str(folder),
    )


@dataclass
class ReportedSteps:
    """The steps of a run as the coordinator reports them."""

    seen: list[Progress] = field(default_factory=list)

    def look(self, status: CoordinatorStatus) -> None:
        """Record a new step."""
        if status.progress and (not self.seen or status.progress.step > self.seen[-1].step):
            self.seen.append(status.progress)

    def seconds_per_step(self, warm: int) -> float:
        """Between the first report from step `warm` on and the last one."""
        counted = [progress for progress in self.seen if progress.step >= warm]
        if len(counted) < 2:
            raise RuntimeError(
                f"the run ended with fewer than two progress reports: more than {warm} steps are "
                "needed"
            )
        first, last = counted[0], counted[-1]
        return (last.time - first.time) / (last.step - first.step)


def seconds_per_step(job: Job, folder: Path) -> float:
    """Train the job to its end."""
    course = ReportedSteps()
    outcome = asyncio.run(LocalRun(desired(job, folder), on_status=course.look).run())
    if outcome.result != "completed":
        raise RuntimeError(f"the training did not complete: {outcome.message}")
    return course.seconds_per_step(job.warm)


def restart_seconds(job: Job, folder: Path) -> float:
    """Kill the rank after a save; seconds from the last step before to the first after."""
    return asyncio.run(_restart_seconds(job, folder))


async def _restart_seconds(job: Job, folder: Path) -> float:
    endless = Job(**{**job.as_dict(), "steps": NEVER})
    run = LocalRun(desired(endless, folder))
    playing = asyncio.create_task(run.run())
    try:
        await _until(lambda: _saved(run), playing)
        run.kill_rank(0)
        await _until(lambda: _down_seconds(run) is not None, playing)
        return _down_seconds(run) or 0.0
    finally:
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)


def _saved(run: LocalRun) -> bool:
    return run.status is not None and run.status.checkpoint is not None


def _down_seconds(run: LocalRun) -> float | None:
    return next((recovery.down_seconds for recovery in run.recoveries.values()), None)


async def _until(condition: Callable[[], bool], playing: asyncio.Task[object]) -> None:
    async with asyncio.timeout(RECOVER_SECONDS):
        while not condition():
            if playing.done():
                raise RuntimeError(f"the run ended by itself: {playing.result()}")
            await asyncio.sleep(0.02)
