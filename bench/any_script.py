"""What killed workers cost a script that was written for torchrun, unchanged.

    make bench NAME=any_script [ARGS="--quick | --case CASE | --subject SUBJECT"]

The cases are scripts of the usual shapes (`bench/shapes`); each saves once an epoch, and begins at
its newest save. Two workers with a rank each run on this machine. Five kills follow each
other: SIGKILL to a rank and to a worker, which is an agent with its rank, by turns. Which one, and
when within an epoch, is drawn once for all subjects. A dead worker is started again after a second,
as a pod would be.

- `regroup`: `launcher: regroup`. `regroup-torchrun`: `launcher: torchrun`, stock agents with our
  store and settings. `torchrun`: stock torchrun; the first worker has the store.

`recovered`: the share of kills after which an epoch ended within a minute; the first without it
ends the run. `rank_seconds`, `worker_seconds`: from the kill of one to the end of the next epoch,
less a usual epoch; the median of a run. `repeated_epochs`: epochs that were reported and then
trained again. `difference`: of the final parameters from those of the same script undisturbed under
stock torchrun, relative to the largest; all compute with one thread. `installed` is 0 where a
library is not.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from bench.any_script_runs import ScriptJob, ScriptRun, make_run
from bench.harness import Plan, Values, command
from bench.kill_course import Kill, KillCourse, Killed
from bench.outcome import NOT_INSTALLED

SHAPES = Path(__file__).with_name("shapes")


@dataclass(frozen=True)
class Shape:
    """A script, and what it needs."""

    script: str
    library: str = "torch"


CASES = {
    "ddp": Shape("ddp_snapshots.py"),
    "fsdp2": Shape("fsdp_checkpoints.py"),
    "accelerate": Shape("accelerate_loop.py", "accelerate"),
    "lightning": Shape("lightning_fit.py", "lightning"),
    "transformers": Shape("trainer_class.py", "transformers"),
}
SUBJECTS = ("regroup", "regroup-torchrun", "torchrun")
QUICK_SUBJECTS = ("regroup", "torchrun")
UNITS = {
    "recovered": "ratio",
    "rank_seconds": "s",
    "worker_seconds": "s",
    "repeated_epochs": "epochs",
    "difference": "ratio",
    "installed": "ratio",
}
WORKERS = 2
QUICK_CASE = "ddp-quick"
KINDS: tuple[Literal["rank", "worker"], ...] = ("rank", "worker")
KILLS, EPOCHS = 5, 40
QUICK_KILLS, QUICK_EPOCHS = 1, 6
"""A quick run kills one rank: stock torchrun seldom recovers from a killed worker."""
RECOVER_SECONDS = 60.0
RUN_SECONDS = 900.0
POLL_SECONDS = 0.1


def drawn(kills: int) -> list[Kill]:
    """The kills of every run."""
    source = random.Random(0)
    return [
        Kill(KINDS[place % 2], source.randrange(WORKERS), source.random()) for place in range(kills)
    ]


def plan(quick: bool) -> Plan:
    """A run of each, with five kills; a quick run has one, and one subject of ours."""
    if quick:
        return Plan("any_script", (QUICK_CASE,), QUICK_SUBJECTS, UNITS, 1)
    return Plan("any_script", tuple(CASES), SUBJECTS, UNITS, 1)


def measure(case: str, subject: str) -> Values:
    """Run a script with kills."""
    kills, epochs = (QUICK_KILLS, QUICK_EPOCHS) if case == QUICK_CASE else (KILLS, EPOCHS)
    shape = CASES[case.removesuffix("-quick")]
    if find_spec(shape.library) is None:
        return NOT_INSTALLED
    final = undisturbed(shape, epochs)
    with tempfile.TemporaryDirectory(prefix="any-script-") as folder:
        course = KillCourse(drawn(kills))
        play(shape, subject, Path(folder), epochs, course)
        found = Path(folder, "final.pt")
        return {
            **summed_up(course.found, kills),
            "difference": difference(found, final) if found.exists() else None,
        }


@cache
def undisturbed(shape: Shape, epochs: int) -> dict[str, torch.Tensor]:
    """The final parameters without a kill."""
    with tempfile.TemporaryDirectory(prefix="any-script-") as folder:
        play(shape, "torchrun", Path(folder), epochs, KillCourse([]))
        return read(Path(folder, "final.pt"))


def play(shape: Shape, subject: str, folder: Path, epochs: int, course: KillCourse) -> None:
    """Run a script to its end, or until a kill stays without recovery."""
    os.environ["OMP_NUM_THREADS"] = "1"
    script = (str(SHAPES / shape.script), str(folder), str(epochs))
    run = make_run(subject, ScriptJob(script, folder / "run", WORKERS, course.read))
    course.strike = lambda kill: (run.kill_rank if kill.what == "rank" else run.kill_worker)(
        kill.number
    )
    asyncio.run(follow(run, course))


async def follow(run: ScriptRun, course: KillCourse) -> None:
    """Run until the end of the script or of our patience."""
    task = asyncio.ensure_future(run.run())
    try:
        async with asyncio.timeout(RUN_SECONDS):
            while not task.done() and course.waits() < RECOVER_SECONDS:
                await asyncio.wait({task}, timeout=POLL_SECONDS)
    except TimeoutError:
        pass
    task.cancel()
    await asyncio.wait({task})


def summed_up(found: Sequence[Killed], kills: int) -> Values:
    """The figures of a run."""
    return {
        "recovered": len(found) / kills,
        **{f"{kind}_seconds": median(found, kind) for kind in KINDS},
        "repeated_epochs": float(sum(kill.repeated for kill in found)) if found else None,
    }


def median(found: Sequence[Killed], kind: str) -> float | None:
    """The median of the seconds after the kills of one kind."""
    seconds = [killed.seconds for killed in found if killed.what == kind]
    return statistics.median(seconds) if seconds else None


def read(file: Path) -> dict[str, torch.Tensor]:
    """The final parameters of a script."""
    found: dict[str, torch.Tensor] = torch.load(file, weights_only=True)
    return found


def difference(file: Path, other: dict[str, torch.Tensor]) -> float:
    """The largest difference of a parameter, relative to the largest parameter."""
    largest = max(float(tensor.abs().max()) for tensor in other.values())
    return max(float((read(file)[name] - other[name]).abs().max()) for name in other) / largest


main = command(plan, measure)

if __name__ == "__main__":
    main()
