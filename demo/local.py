"""The demo where no cluster can be had: the same YAML with local processes; a worker that is killed stands for a node.

There is no Kubernetes to compare with and no Prometheus, so the node's checks and the picture are left out.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from demo.errors import StoryError
from demo.facts import Facts, Loss, worlds_of
from demo.job import manifest
from demo.reference import Losses
from demo.screen import Screen
from demo.story import STEPS_BEYOND_CHECKPOINT, WORKERS, announced_since, new_step, newest_work
from demo.volume import Volume
from regroup.local import LocalRun, LocalRunError
from regroup.wish import local_desired
from regroup_operator.api import TrainingJobSpec
from regroup_trainer.job_status import CoordinatorStatus, Verdict

T = TypeVar("T")
AWAY_SECONDS = 10.0
"""How long the killed worker stays away."""


def play(folder: Path, screen: Screen) -> Facts:
    """Play it without a cluster. Raises StoryError."""
    try:
        return asyncio.run(_play(folder / "local", screen))
    except LocalRunError as error:
        raise StoryError(str(error)) from error


async def _play(folder: Path, screen: Screen) -> Facts:
    shutil.rmtree(folder, ignore_errors=True)
    reference = await _reference(folder / "reference", screen)
    run = _run_of(folder / "run")
    screen.title("Training with three local workers")
    playing = asyncio.create_task(run.run())
    watch = _Watch(run, playing, screen)
    with screen.live():
        loss = await _lose_worker(watch)
        verdict = await watch.until("completion", lambda: playing.result() if playing.done() else None, 900)
    committed = watch.volume.committed()
    return Facts(
        cluster="local",
        loss_of_node=loss,
        status=_as_status(run.status, verdict),
        total_steps=run.desired.train.training.steps,
        worlds=worlds_of(committed),
        losses=tuple(step.loss for step in committed),
        reference=reference,
        problems=tuple(watch.volume.audit()),
        kubernetes_version=None,
        wall_seconds=screen.elapsed,
    )


def _run_of(folder: Path) -> LocalRun:
    described = manifest()
    spec = TrainingJobSpec.model_validate(described["spec"])
    desired = local_desired(spec, described["metadata"]["name"], str(folder.absolute()))
    return LocalRun(desired, replace_seconds=AWAY_SECONDS)


async def _reference(folder: Path, screen: Screen) -> Losses:
    run = _run_of(folder)
    screen.title("The same YAML undisturbed, to compare with")
    playing = asyncio.create_task(run.run())
    watch = _Watch(run, playing, screen)
    with screen.live():
        await watch.until("the undisturbed run to end", lambda: playing.done() or None, 900)
    losses = tuple(step.loss for step in watch.volume.committed())
    screen.tell(f"It ended after {len(losses)} steps")
    return losses


class _Watch:
    """Shows the progress of a run while waiting."""

    def __init__(self, run: LocalRun, playing: asyncio.Task[Verdict], screen: Screen) -> None:
        self.run, self.playing, self.screen = run, playing, screen
        self.volume = Volume(Path(run.desired.directory))

    async def until(self, what: str, condition: Callable[[], T | None], seconds: float) -> T:
        """Wait for `condition`. Raises StoryError after `seconds`, or when the run ends before."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if self.playing.done():
                raise StoryError(f"the run ended before {what}: {self.playing.result().message}")
            if time.monotonic() > deadline:
                raise StoryError(f"{what} did not happen within {seconds:.0f} s")
            self._show()
            await asyncio.sleep(0.02)
        return found

    def _show(self) -> None:
        status = self.run.status
        if status and status.progress:
            loss = "-" if status.progress.loss is None else f"{status.progress.loss:.3f}"
            facts = {"phase": status.phase, "world": str(status.world_size), "loss": loss}
            self.screen.progress(status.progress.step, status.total_steps, facts)


async def _lose_worker(watch: _Watch) -> Loss:
    """Kill the worker of rank 0, and watch what follows up to the first newly committed step."""
    run, volume, screen = watch.run, watch.volume, watch.screen

    def at_risk() -> bool:
        written, saved = volume.last_step(), volume.newest_checkpoint()
        if written is None or saved is None or written.world != WORKERS:
            return False
        return written.step >= saved + STEPS_BEYOND_CHECKPOINT

    await watch.until("a checkpoint and steps beyond it", at_risk, 300)
    members = run.status.members if run.status else ()
    victim = next(member for member in members if member.rank == 0)
    screen.title(f"Killing worker {victim.index}, which holds rank 0")
    before = set(volume.announced())
    pulled = time.time()
    run.kill_worker(victim.index)
    last, saved = newest_work(volume)
    detected = await watch.until("detection", lambda: announced_since(volume, before), 30)
    screen.tell(f"Detected after {detected - pulled:.2f} s", "green")
    first, resumed_from = await watch.until("the first new step", lambda: new_step(volume, last), 60)
    screen.tell(f"Training goes on with {first.world} after {first.time - pulled:.2f} s", "green")
    return Loss(victim.node, "local", pulled, last.step, saved, detected, False, first.time, resumed_from)


def _as_status(status: CoordinatorStatus | None, verdict: Verdict) -> dict[str, Any]:
    """What the operator would have written of it."""
    if status is None:
        return {}
    complete = "True" if verdict.outcome == "completed" else "False"
    return {
        "phase": verdict.outcome,
        "conditions": [{"type": "Complete", "status": complete}],
        "recoveries": [{"cause": one.cause, "rung": one.rung} for one in status.recoveries],
        "goodput": {"ratio": status.ledger.goodput_ratio},
        "progress": {"tokensPerSecond": status.progress.tokens_per_second if status.progress else None},
    }
