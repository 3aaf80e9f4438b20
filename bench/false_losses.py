"""Whether a busy machine makes the coordinator declare live workers lost: the losses in an hour of
full load on all cores.

    make bench NAME=false_losses [ARGS="--minutes 60"]

Three workers train on this machine while a busy process runs for each core. No fault is injected,
so every new generation is a false loss.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from bench.harness import RESULTS, Plan, rows, write
from bench.recovery_regroup import desired
from bench.recovery_settings import HEARTBEAT_SECONDS, LOST_SECONDS, WORKERS
from regroup.local.local_run import LocalRun
from regroup.local.processes import dies_with
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus

BUSY = (
    "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: "
    "pass"
)
UNITS = {"losses": "count", "steps": "steps", "minutes": "min"}


@dataclass
class Watch:
    """Records generations; the first one with all workers should stay."""

    begun: float | None = None
    generations: set[GenerationNumber] = field(default_factory=set)
    steps: int = 0

    def look(self, status: CoordinatorStatus) -> None:
        """Record the generation and the step of a status."""
        if self.begun is None and status.world_size == WORKERS and status.phase == "running":
            self.begun = time.monotonic()
        if self.begun is not None and status.generation is not None:
            self.generations.add(status.generation)
            self.steps = status.progress.step if status.progress else self.steps

    @property
    def losses(self) -> int:
        """The number of generations after the first full one."""
        return len(self.generations) - 1


@contextmanager
def full_load(seconds: float) -> Iterator[None]:
    """A busy process for each core."""
    busy = [
        subprocess.Popen(
            [sys.executable, "-c", BUSY, str(seconds)],
            # One prctl and one getppid, both already resolved: safe between fork and exec.
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509
        )
        for _ in os.sched_getaffinity(0)
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


async def watch(folder: Path, seconds: float) -> Watch:
    """Train for so long under load. Raises RuntimeError when the training ends."""
    seen = Watch()
    run = LocalRun(desired(folder, WORKERS, "ddp"), on_status=seen.look)
    playing = asyncio.create_task(run.run())
    try:
        while seen.begun is None or time.monotonic() - seen.begun < seconds:
            done, _ = await asyncio.wait([playing], timeout=1.0)
            if done:
                raise RuntimeError(f"the training ended: {playing.result().message}")
    finally:
        playing.cancel()
        await asyncio.wait([playing])
    return seen


@click.command()
@click.option(
    "--minutes", type=click.FloatRange(0.05), default=60.0, show_default=True, help="How long."
)
@click.option(
    "--output", type=click.Path(path_type=Path), default=RESULTS, help="Folder of the results."
)
def main(minutes: float, output: Path) -> None:
    """Count the losses."""
    with (
        tempfile.TemporaryDirectory(prefix="regroup-bench-") as folder,
        full_load(minutes * 60 + 120),
    ):
        seen = asyncio.run(watch(Path(folder), minutes * 60))
    values = {"losses": float(seen.losses), "steps": float(seen.steps), "minutes": minutes}
    settings = f"heartbeat {HEARTBEAT_SECONDS} s, lost after {LOST_SECONDS} s"
    plan = Plan(
        "false_losses", ("full-load",), ("regroup",), UNITS, 1, lambda _case, _subject: settings
    )
    file = write(
        output, plan.name, rows(plan, "full-load", "regroup", [values]), quick=minutes < 60
    )
    click.echo(
        f"{seen.losses} losses in {minutes:g} minutes and {seen.steps} steps; written to {file}"
    )


if __name__ == "__main__":
    main()
