"""Subject `regroup` of bench/recovery.py: the local mode, observed through the files of its run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bench.outcome import FAILED, Step, outcome
from regroup.local import LocalRun
from regroup_trainer.config import CheckpointPolicy, ModelConfig, TrainConfig, TrainingConfig
from regroup_trainer.contract import Desired

T = TypeVar("T")
SAVE_EVERY = 20
BEYOND = 10
ENOUGH = 20
START_SECONDS = 120.0
RECOVER_SECONDS = 60.0


def desired(folder: Path) -> Desired:
    """Three workers, at least two, that train a tiny model without an end."""
    training = TrainingConfig(steps=10**6, global_batch_size=6, micro_batch_size=2, sequence_length=64)
    return Desired(
        revision=1,
        namespace="bench",
        job="recovery",
        replicas=3,
        min_replicas=2,
        max_replicas=3,
        train=TrainConfig(model=ModelConfig(preset="tiny"), training=training),
        checkpoint=CheckpointPolicy(interval_steps=SAVE_EVERY),
        directory=str(folder),
    )


class Observer:
    """Notes when each step was seen on the volume."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[Step] = []
        self._read: dict[Path, int] = {}

    def look(self) -> None:
        """Take over the lines that are new."""
        now = time.time()
        for path in sorted((self.folder / "history").glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            self._read[path] = self._read.get(path, 0) + (len(whole) + 1 if whole else 0)
            self.steps += [Step(path.stem, json.loads(line)["step"], now) for line in whole.splitlines()]

    def announced(self) -> set[Path]:
        """The generation numbers reserved so far; the next one is reserved when a generation is announced."""
        return set((self.folder / "lineage").glob("*.claim"))


def measure(case: str, folder: Path) -> dict[str, float | None]:
    """One kill."""
    return asyncio.run(_measure(case, folder))


async def _measure(case: str, folder: Path) -> dict[str, float | None]:
    run, observer = LocalRun(desired(folder)), Observer(folder)
    playing = asyncio.create_task(run.run())
    try:
        await _until(lambda: at_risk(observer), observer, playing, START_SECONDS)
        announced = observer.announced()
        killed = time.time()
        _kill(run, case)
        try:
            found = await _until(lambda: outcome(observer.steps, killed, ENOUGH), observer, playing, RECOVER_SECONDS)
        except TimeoutError:
            return FAILED
        times = [path.stat().st_mtime for path in observer.announced() - announced]
        return {**found, "detect_seconds": min(times) - killed if times else None}
    finally:
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await playing


def at_risk(observer: Observer) -> bool | None:
    """Whether there are steps beyond the newest save."""
    newest = observer.steps[-1].step if observer.steps else 0
    return newest > SAVE_EVERY and newest % SAVE_EVERY >= BEYOND


async def _until(
    condition: Callable[[], T | None], observer: Observer, playing: asyncio.Task[object], seconds: float
) -> T:
    """Wait for a condition. Raises TimeoutError, or what ended the run."""
    async with asyncio.timeout(seconds):
        while not (found := condition()):
            if playing.done():
                raise RuntimeError(f"the run ended by itself: {playing.result()}")
            await asyncio.sleep(0.005)
            observer.look()
        return found


def _kill(run: LocalRun, case: str) -> None:
    if case == "coordinator-kill":
        run.kill_coordinator()
        return
    if case == "rank-kill":
        run.kill_rank(0)
        return
    members = run.status.members if run.status else ()
    run.kill_worker(next(member.index for member in members if member.rank == 0))
