"""Reports of a rank that loads or compiles before a first step, while its main thread is in it.

A generation that goes on with the state of live ranks gets no more time for its first step than for
any other (`coordinator/hangs.py`). A rank that needs more reports it, again and again. One that
waits for other ranks does not: so the rank that hangs is found.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator

from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.protocol.rank_messages import BUSY_SECONDS, Busy

USER_SECONDS = 3600.0
"""How long a user's code may take before its first step, such as for making a data set."""
_OWN_SECONDS = 600.0
"""How long one compilation or the like may take."""


class BusyReports:
    """What one rank reports in one generation; nothing in one that gets time anyway."""

    def __init__(self, assignment: Assignment, channel: Channel) -> None:
        record = assignment.record
        self.are_due = channel.lasting and record.restored_from == "Peers"
        """Whether somebody waits for them."""
        self._channel = channel
        self._number, self._rank = record.number, assignment.rank
        self._stop = threading.Event()
        self._noted_at = time.monotonic()

    def begin(self, doing: str, seconds: float = _OWN_SECONDS) -> None:
        """Report once a second, for so many seconds at most, that this rank is `doing` something,
        until `end` or another `begin`.
        """
        self.end()
        if self.are_due:
            self._stop = threading.Event()
            repeat = functools.partial(self._repeat, doing, self._stop, seconds)
            threading.Thread(target=repeat, name="busy", daemon=True).start()

    def end(self) -> None:
        """Report no more."""
        self._stop.set()

    @contextlib.contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """`begin` and `end`."""
        self.begin(doing)
        try:
            yield
        finally:
            self.end()

    def note_transfer(self) -> None:
        """A piece of a state has arrived or left: report it, at most once a second."""
        now = time.monotonic()
        if self.are_due and now - self._noted_at >= BUSY_SECONDS:
            self._noted_at = now
            self._send("moving the state")

    def _repeat(self, doing: str, stop: threading.Event, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not stop.wait(BUSY_SECONDS) and time.monotonic() < until:
            self._send(doing)

    def _send(self, doing: str) -> None:
        self._channel.send(Busy(generation=self._number, rank=self._rank, doing=doing, step=0))


def report_compilation(assignment: Assignment, channel: Channel) -> None:
    """Report from now on when torch compiles in this process, the code of a user's program too."""
    reports = BusyReports(assignment, channel)
    if reports.are_due:
        _compilation().reports = reports


class _Compilation:
    """What torch calls when it begins to compile and when it has ended."""

    reports: BusyReports | None = None
    """Of the newest generation."""

    def begin(self, *_: object) -> None:
        if self.reports is not None:
            self.reports.begin("compiling")

    def end(self, *_: object) -> None:
        if self.reports is not None:
            self.reports.end()


@functools.cache
def _compilation() -> _Compilation:
    from torch._dynamo import callback

    watch = _Compilation()
    callback.on_compile_start(watch.begin)
    callback.on_compile_end(watch.end)
    return watch
