"""The event journal: what a user should be told, newest fifty, with a sequence that also survives a restart."""

from __future__ import annotations

from collections import deque
from typing import Literal

from regroup_trainer.job_status import JobEvent

EVENTS_KEPT = 50
RARELY_SECONDS = 60.0
"""Events of what happens again and again are told at most this often; the status always has the newest."""


class Journal:
    """Numbers start at the wall clock in milliseconds: a restarted coordinator's are higher than the old ones."""

    def __init__(self, wall: float) -> None:
        self._sequence = int(wall * 1000)
        self._events: deque[JobEvent] = deque(maxlen=EVENTS_KEPT)
        self._told_at: dict[str, float] = {}

    def tell(self, wall: float, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal") -> None:
        """Keep an event."""
        self._sequence += 1
        event = JobEvent(sequence=self._sequence, time=wall, type=kind, reason=reason, message=message[:1024])
        self._events.append(event)

    def tell_rarely(
        self, wall: float, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        """Keep an event unless there was one of this reason a moment ago."""
        if wall - self._told_at.get(reason, float("-inf")) >= RARELY_SECONDS:
            self._told_at[reason] = wall
            self.tell(wall, reason, message, kind)

    def events(self) -> tuple[JobEvent, ...]:
        """Oldest first."""
        return tuple(self._events)
