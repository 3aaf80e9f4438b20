"""What a kill did to a training, from the steps that it committed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """A committed step."""

    world: str
    """Which world made it: another one begins anew from a saved step."""
    step: int
    time: float
    """Seconds since the epoch."""


UNITS = {"recovered": "ratio", "detect_seconds": "s", "down_seconds": "s", "lost_steps": "steps"}


def outcome(steps: Sequence[Step], killed: float, enough: int) -> dict[str, float | None] | None:
    """Down time and lost steps of a kill at time `killed`; None while fewer than `enough` steps followed it.

    A step that was under way may still be committed by the old world: down time counts to the first step of a new world
    where there is one.
    """
    before = [step for step in steps if step.time <= killed]
    after = [step for step in steps if step.time > killed]
    renewed = [step for step in after if step.world != before[-1].world]
    follow = renewed or after
    if len(follow) < enough:
        return None
    lost = max(0, before[-1].step - follow[0].step + 1) if renewed else 0
    return {"recovered": 1.0, "down_seconds": follow[0].time - killed, "lost_steps": float(lost)}


FAILED: dict[str, float | None] = {"recovered": 0.0, "down_seconds": None, "lost_steps": None}
