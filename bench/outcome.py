"""What a fault did to a training, from the steps that it committed. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Step:
    """A committed step."""

    generation: str
    """The generation that committed it."""
    step: int
    time: float
    """Seconds since the epoch."""
    loss: float = 0.0


UNITS = {
    "recovered": "ratio",
    "detect_seconds": "s",
    "down_seconds": "s",
    "lost_steps": "steps",
    "loss_difference": "ratio",
    "installed": "ratio",
    "trains": "ratio",
}
FAILED: dict[str, float | None] = {"recovered": 0.0, "down_seconds": None, "lost_steps": None}
NOT_INSTALLED: dict[str, float | None] = {"installed": 0.0}
DOES_NOT_TRAIN: dict[str, float | None] = {"trains": 0.0}


@dataclass(frozen=True)
class Fault:
    """A fault or a requested change."""

    time: float
    """Seconds since the epoch."""
    planned: bool = False
    """Whether this is a requested resize and not a failure."""


STALL_SECONDS = 1.0
"""A generation has stopped if its newest step is older than a usual pause by this much."""


def after_new_generation(
    steps: Sequence[Step], fault: Fault, enough: int
) -> dict[str, float | None] | None:
    """Down time and lost steps if a new generation followed; None while it has committed fewer than
    `enough` steps.

    Down time counts from the fault to the first step of the new generation. After a planned change,
    it counts from the last step of the old one, which trained until then. A step is lost that was
    committed and then done again.
    """
    before = [step for step in steps if step.time <= fault.time]
    renewed = [
        step
        for step in steps
        if step.time > fault.time and step.generation != before[-1].generation
    ]
    if len(renewed) < enough:
        return None
    first = renewed[0]
    old = [
        step
        for step in steps
        if step.generation == before[-1].generation and step.time <= first.time
    ]
    since = old[-1].time if fault.planned else fault.time
    lost = max(0, old[-1].step - first.step + 1)
    return {"recovered": 1.0, "down_seconds": first.time - since, "lost_steps": float(lost)}


def within_same_generation(
    steps: Sequence[Step], fault: Fault, until: float, enough: int
) -> dict[str, float | None] | None:
    """The same if the generation continued until the time `until`. Down time is the longest pause
    between two steps minus the median pause before the fault. None if it did not continue.
    """
    before, pauses = (
        [step for step in steps if step.time <= fault.time],
        durations_within_generations(steps),
    )
    usual = statistics.median(seconds for later, seconds in pauses if later.time <= fault.time)
    watched = [(later, seconds) for later, seconds in pauses if fault.time < later.time <= until]
    lived = [
        (later.time, seconds)
        for later, seconds in watched
        if later.generation == before[-1].generation
    ]
    if len(lived) < enough or until - lived[-1][0] > usual + STALL_SECONDS:
        return None
    longest = max(seconds for _, seconds in lived)
    return {"recovered": 1.0, "down_seconds": max(0.0, longest - usual), "lost_steps": 0.0}


def durations_within_generations(steps: Sequence[Step]) -> list[tuple[Step, float]]:
    """Each step that follows one of its own generation, and the seconds between the two."""
    return [
        (later, later.time - step.time)
        for step, later in pairwise(steps)
        if step.generation == later.generation
    ]


def final(steps: Sequence[Step]) -> dict[int, Step]:
    """The history that the state of the run consists of: a generation undoes the steps of others
    after its first step.
    """
    kept: list[Step] = []
    generation = ""
    for step in sorted(steps, key=lambda one: one.time):
        if step.generation != generation:
            generation = step.generation
            kept = [one for one in kept if one.step < step.step]
        kept.append(step)
    return {step.step: step for step in kept}


def loss_difference(steps: Sequence[Step], undisturbed: Mapping[int, float]) -> float | None:
    """The largest relative difference of a step's loss from that of a run without a fault; None
    without common ones.
    """
    found = [
        (step.loss, undisturbed[number])
        for number, step in final(steps).items()
        if number in undisturbed
    ]
    return max((abs(loss - other) / abs(other) for loss, other in found), default=None)


LONGEST = 3.0
"""A step that lasts so many median ones was waiting for more than itself."""


def useful_seconds(steps: Sequence[Step]) -> tuple[float, int]:
    """Time of the steps that the final history consists of, and how many others there were.

    A step lasts from the end of the one before it in its own generation; LONGEST bounds it.
    """
    durations = durations_within_generations(steps)
    longest = LONGEST * statistics.median(seconds for _, seconds in durations)
    kept = set(final(steps).values())
    return sum(min(seconds, longest) for step, seconds in durations if step in kept), len(
        steps
    ) - len(kept)
