"""The demo without a cluster. It trains the same YAML with local processes. A killed worker stands
for a lost node.

There is neither Kubernetes nor Prometheus. The checks about nodes and the picture are left out.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from demo.errors import StoryError
from demo.facts import Facts, Losses, NodeLoss, world_sizes_of
from demo.job import manifest
from demo.screen import Screen
from demo.story import STEPS_BEYOND_CHECKPOINT, WORKERS, announced_since, new_step, newest_work
from demo.volume import Volume
from regroup.local.local_desired import local_desired
from regroup.local.local_run import LocalRun, LocalRunError
from regroup_operator.api.spec import TrainingJobSpec
from regroup_trainer.protocol.job_status import CoordinatorStatus, Outcome

T = TypeVar("T")
AWAY_SECONDS = 10.0
"""Seconds until the killed worker is replaced."""


def run_demo(folder: Path, screen: Screen) -> Facts:
    """Run the demo without a cluster. Raises StoryError."""
    try:
        return asyncio.run(_run_demo(folder / "local", screen))
    except LocalRunError as error:
        raise StoryError(str(error)) from error


async def _run_demo(folder: Path, screen: Screen) -> Facts:
    shutil.rmtree(folder, ignore_errors=True)
    reference = await _reference(folder / "reference", screen)
    run = _run_of(folder / "run")
    screen.title("Training with three local workers")
    running = asyncio.create_task(run.run())
    watch = _Watch(run, running, screen)
    with screen.live():
        loss = await _lose_worker(watch)
        outcome = await watch.until(
            "completion", lambda: running.result() if running.done() else None, 900
        )
    committed = watch.volume.committed()
    return Facts(
        cluster="local",
        loss_of_node=loss,
        status=_as_status(run.status, outcome),
        total_steps=run.desired.train.training.steps,
        world_sizes=world_sizes_of(committed),
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
    screen.title("Reference: the same YAML without failures")
    running = asyncio.create_task(run.run())
    watch = _Watch(run, running, screen)
    with screen.live():
        await watch.until("the end of the undisturbed run", lambda: running.done() or None, 900)
    losses = tuple(step.loss for step in watch.volume.committed())
    screen.report(f"The reference run ended after {len(losses)} steps")
    return losses


class _Watch:
    """Waits for events of a run and shows its progress meanwhile."""

    def __init__(self, run: LocalRun, running: asyncio.Task[Outcome], screen: Screen) -> None:
        self.run, self.running, self.screen = run, running, screen
        self.volume = Volume(Path(run.desired.directory))

    async def until(self, what: str, condition: Callable[[], T | None], seconds: float) -> T:
        """Wait for `condition`. Raises StoryError after `seconds`, or when the run ends first."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if self.running.done():
                raise StoryError(f"the run ended before {what}: {self.running.result().message}")
            if time.monotonic() > deadline:
                raise StoryError(f"{what} did not happen within {seconds:.0f} s")
            self._show()
            await asyncio.sleep(0.02)
        return found

    def _show(self) -> None:
        status = self.run.status
        if status and status.progress:
            loss = "-" if status.progress.loss is None else f"{status.progress.loss:.3f}"
            facts = {"phase": status.phase, "world size": str(status.world_size), "loss": loss}
            self.screen.progress(status.progress.step, status.total_steps, facts)


async def _lose_worker(watch: _Watch) -> NodeLoss:
    """Kill the worker of rank 0 and wait for the first new committed step."""
    run, volume, screen = watch.run, watch.volume, watch.screen

    def at_risk() -> bool:
        written, saved = volume.last_step(), volume.newest_checkpoint()
        if written is None or saved is None or written.world_size != WORKERS:
            return False
        return written.step >= saved + STEPS_BEYOND_CHECKPOINT

    await watch.until("a checkpoint and steps beyond it", at_risk, 300)
    members = run.status.members if run.status else ()
    victim = next(member for member in members if member.rank == 0)
    screen.title(f"Killing worker {victim.index}, which holds rank 0")
    before = set(volume.announced())
    cut_at = time.time()
    run.kill_worker(victim.index)
    last, saved = newest_work(volume)
    detected = await watch.until("detection", lambda: announced_since(volume, before), 30)
    screen.report(f"Detected after {detected - cut_at:.2f} s", "green")
    first, resumed_from = await watch.until(
        "the first new step", lambda: new_step(volume, last), 60
    )
    screen.report(
        f"Training continued with {first.world_size} ranks after {first.time - cut_at:.2f} s",
        "green",
    )
    return NodeLoss(
        victim.node, "local", cut_at, last.step, saved, detected, False, first.time, resumed_from
    )


def _as_status(status: CoordinatorStatus | None, outcome: Outcome) -> dict[str, Any]:
    """The status that the operator would have written for this run."""
    if status is None:
        return {}
    complete = "True" if outcome.result == "completed" else "False"
    return {
        "phase": outcome.result,
        "conditions": [{"type": "Complete", "status": complete}],
        "recoveries": [
            {"cause": one.cause, "restoredFrom": one.restored_from} for one in status.recoveries
        ],
        "goodput": {"ratio": status.ledger.goodput_ratio},
        "progress": {
            "tokensPerSecond": status.progress.tokens_per_second if status.progress else None
        },
    }
