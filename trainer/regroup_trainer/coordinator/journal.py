"""The journal of events for the user: the newest fifty. Pure."""

from __future__ import annotations

from collections import deque
from typing import Literal

from regroup_trainer.protocol.job_status import JobEvent

EVENTS_KEPT = 50
RARELY_SECONDS = 60.0
"""Least time between two events of a reason that comes again and again."""


class Journal:
    """Numbers its events from the wall clock in milliseconds.

    So the numbers of a restarted coordinator are higher than those of the one before.
    """

    def __init__(self, wall: float) -> None:
        self._sequence = int(wall * 1000)
        self._events: deque[JobEvent] = deque(maxlen=EVENTS_KEPT)
        self._emitted_at: dict[str, float] = {}

    def emit(
        self, wall: float, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        """Keep an event."""
        self._sequence += 1
        event = JobEvent(
            sequence=self._sequence, time=wall, type=kind, reason=reason, message=message[:1024]
        )
        self._events.append(event)

    def emit_rarely(
        self, wall: float, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        """Keep an event, unless one of this reason came within the last RARELY_SECONDS."""
        if wall - self._emitted_at.get(reason, float("-inf")) >= RARELY_SECONDS:
            self._emitted_at[reason] = wall
            self.emit(wall, reason, message, kind)

    def events(self) -> tuple[JobEvent, ...]:
        """Oldest first."""
        return tuple(self._events)
