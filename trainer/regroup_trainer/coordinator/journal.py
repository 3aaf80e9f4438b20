"""The journal of events for the user: the newest fifty. Pure."""

from __future__ import annotations

from collections import deque
from typing import Literal

from regroup_trainer.protocol.job_status import JobEvent
from regroup_trainer.protocol.message import named

EVENTS_KEPT = 50
RARELY_SECONDS = 60.0
"""Least time between two events of a reason that comes again and again."""
EVENTS_APART = 3
"""Workers that are lost at once, or ranks that become stragglers at once, and have an event each.
More are summed up.
"""
GATHER_SECONDS = 1.0
"""Losses that follow within it count as at once: a switch that fails is noticed node by node."""


class Journal:
    """Numbers its events from the wall clock in milliseconds.

    So the numbers of a restarted coordinator are higher than those of the one before.
    """

    def __init__(self, wall: float) -> None:
        self._sequence = int(wall * 1000)
        self._events: deque[JobEvent] = deque(maxlen=EVENTS_KEPT)
        self._emitted_at: dict[str, float] = {}
        self._losses: list[tuple[str, str]] = []
        """The pod and the event of each loss that has no event yet."""
        self._losses_until = float("-inf")
        """Until then, losses are gathered."""

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
    ) -> bool:
        """Keep an event, unless one of this reason came within the last RARELY_SECONDS; returns
        whether it is kept.
        """
        if wall - self._emitted_at.get(reason, float("-inf")) < RARELY_SECONDS:
            return False
        self._emitted_at[reason] = wall
        self.emit(wall, reason, message, kind)
        return True

    def note_loss(self, pod: str, message: str) -> None:
        """A worker is lost. `emit_losses` makes the event."""
        self._losses.append((pod, message))

    def emit_losses(self, wall: float) -> None:
        """Keep the events of lost workers: one, where many are lost at once. The first after a
        while is not held back.
        """
        if not self._losses or wall < self._losses_until:
            return
        losses, self._losses = self._losses, []
        self._losses_until = wall + GATHER_SECONDS
        messages = [message for _, message in losses]
        if (count := len(losses)) > EVENTS_APART:
            pods = named((pod for pod, _ in losses), count)
            messages = [f"{count} workers are lost: {pods}; the first: {messages[0]}"]
        for message in messages:
            self.emit(wall, "WorkerLost", message, "Warning")

    def events(self) -> tuple[JobEvent, ...]:
        """Oldest first."""
        return tuple(self._events)
