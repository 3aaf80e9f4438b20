"""Connections in virtual time: ordered, delayed, cut silently, or closed at one end only."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from pydantic import BaseModel

LONGEST_DELAY = 0.3


@dataclass
class Direction:
    """One direction of a connection."""

    cut: bool = False
    """Nothing arrives. What was sent arrives when the connection works again."""
    _queue: deque[tuple[float, BaseModel]] = field(default_factory=deque)

    def send(self, message: BaseModel, now: float, random: Random) -> None:
        """Send a message. Messages keep their order, as in TCP."""
        at = now + random.random() ** 4 * LONGEST_DELAY
        self._queue.append((max(at, self._queue[-1][0]) if self._queue else at, message))

    def receive(self, now: float) -> list[BaseModel]:
        """The messages that have arrived since the last call."""
        arrived = []
        while not self.cut and self._queue and self._queue[0][0] <= now:
            arrived.append(self._queue.popleft()[1])
        return arrived


@dataclass(eq=False)
class Connection:
    """A connection between an agent and a coordinator."""

    member: str
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)
    closed_by_agent: bool = False
    closed_by_coordinator: bool = False
