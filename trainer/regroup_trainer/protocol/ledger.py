"""The ledger: a job's time and losses, and the tries of a program that may be unable to start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from regroup_trainer.protocol.message import Message, Name, Text, WallClock

Cause = Literal["application", "infrastructure", "hang", "preemption", "resize"]
"""Which budget a restart counts against."""
FAILURES: tuple[Cause, ...] = ("application", "infrastructure", "hang")
"""The causes that are failures; the others are planned."""
GpuUse = Literal["useful", "lost", "waiting"]
"""What the time of a GPU was spent on: steps, steps that are done again, all else."""


class Ledger(Message):
    """A job's time and losses so far. It never falls: a new coordinator starts with the old one."""

    seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds by phase: pending, startup, rendezvous, step, data_wait, checkpoint_save,
    checkpoint_restore, evaluation, idle.
    """
    lost_work_seconds: float = 0.0
    """Time of steps that had to be done again."""
    gpu_seconds: dict[GpuUse, float] = Field(default_factory=dict)
    """Seconds of all GPUs by use. Each rank has one."""
    lost_gpu_seconds: float = 0.0
    """Of all steps that had to be done again. `gpu_seconds` counts them as lost while they are."""
    lost_steps: int = 0
    restarts: dict[Cause, int] = Field(default_factory=dict)

    @property
    def goodput_ratio(self) -> float:
        """(step seconds - lost work seconds) / all seconds, at most 1; 0 before any time has
        passed.
        """
        total = sum(self.seconds.values())
        kept = self.seconds.get("step", 0.0) - self.lost_work_seconds
        return min(1.0, max(0.0, kept) / total) if total > 0 else 0.0


class FailedStarts(Message):
    """The last failures of a program that never lived for a minute nor reported a step, for a new
    coordinator to go on counting.
    """

    error: Text = ""
    """What they have in common."""
    tries: Annotated[int, Field(ge=0, le=3)] = 0
    machines: Annotated[tuple[Name, ...], Field(max_length=2, fail_fast=True)] = ()
    """Those that have shown it; of several, two."""
    since: WallClock
    """When its newest generation began."""
