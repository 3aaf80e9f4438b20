"""How the process of a user's program was started: its place in a generation and its channel to the
agent.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.protocol.rank_messages import Finished, GenerationOutcome, LastLine
from regroup_trainer.rank.busy_reports import BusyReports


@dataclass
class Launch:
    """How the rank that runs the program was started."""

    assignment: Assignment
    channel: Channel
    finish: Callable[[], None] | None = None
    """Called when the program has ended well. A Session sets it."""
    give_up: Callable[[BaseException], None] | None = None
    """Called with the error of a program that has failed. A Session sets it."""
    process: int = field(default_factory=os.getpid)
    """The id of the rank's own process. Those that it forks do not report."""

    @cached_property
    def busy(self) -> BusyReports:
        """What it reports before it has a Session."""
        return BusyReports(self.assignment, self.channel)

    def note_failure(self, error: BaseException) -> None:
        """The program has failed: let its Session end, if it has one."""
        if self.give_up is not None:
            self.give_up(error)

    def report_last_line(self) -> None:
        """Report that the program has done its work, and only the end of its process follows."""
        number, rank = self.assignment.record.number, self.assignment.rank
        self.channel.send(LastLine(generation=number, rank=rank))

    def report_end(self, reason: GenerationOutcome) -> None:
        """Report that this rank's part of the generation has ended."""
        number, rank = self.assignment.record.number, self.assignment.rank
        self.channel.send(Finished(generation=number, rank=rank, step=0, reason=reason))


_present: list[Launch] = []


def announce(launch: Launch) -> None:
    """Make known how this process was started, before the program runs."""
    _present[:] = [launch]


def present() -> Launch | None:
    """How this process was started; None when no agent started it."""
    return _present[0] if _present else None
