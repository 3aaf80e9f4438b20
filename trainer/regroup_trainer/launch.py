"""What a program of the user's own finds itself in: its place in a generation, and the line to its agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from regroup_trainer.channel import Channel
from regroup_trainer.contract import Assignment, Finished


@dataclass
class Launch:
    """How the rank that runs the program was started."""

    assignment: Assignment
    channel: Channel
    finish: Callable[[], None] | None = None
    """To be called when the program has ended well; set by the Session that speaks for the program, if there is one."""

    def tell_end(self, reason: Literal["completed", "leave", "stop"], step: int = 0) -> None:
        """Say that this rank ends of its own will."""
        number, rank = self.assignment.record.number, self.assignment.rank
        self.channel.send(Finished(generation=number, rank=rank, step=step, reason=reason))


_present: list[Launch] = []


def announce(launch: Launch) -> None:
    """Say how this process was started, before the program runs."""
    _present[:] = [launch]


def present() -> Launch | None:
    """How this process was started; None when no agent did it."""
    return _present[0] if _present else None
