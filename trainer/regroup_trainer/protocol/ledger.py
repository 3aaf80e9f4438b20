"""The ledger: a job's time and losses."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from regroup_trainer.protocol.message import Message

Cause = Literal["application", "infrastructure", "hang", "preemption", "resize"]
"""Which budget a restart counts against."""
FAILURES: tuple[Cause, ...] = ("application", "infrastructure", "hang")
"""The causes that are failures; the others are planned."""


class Ledger(Message):
    """A job's time and losses so far. It never falls: a new coordinator starts with the old one."""

    seconds: dict[str, float] = Field(default_factory=dict)
    """Seconds by phase: pending, startup, rendezvous, step, data_wait, checkpoint_save,
    checkpoint_restore, evaluation, idle.
    """
    lost_work_seconds: float = 0.0
    """Time of steps that had to be done again."""
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
