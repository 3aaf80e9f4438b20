"""Connections in virtual time: ordered, delayed, cut without a word, and closed without the other end's knowledge."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from pydantic import BaseModel

LONGEST_DELAY = 0.3


@dataclass
class Way:
    """One direction of a connection."""

    cut: bool = False
    """Nothing arrives; what was sent does when it is mended."""
    _queue: deque[tuple[float, BaseModel]] = field(default_factory=deque)

    def send(self, message: BaseModel, now: float, random: Random) -> None:
        """Messages keep their order, as in TCP."""
        at = now + random.random() ** 4 * LONGEST_DELAY
        self._queue.append((max(at, self._queue[-1][0]) if self._queue else at, message))

    def receive(self, now: float) -> list[BaseModel]:
        """What has arrived."""
        arrived = []
        while not self.cut and self._queue and self._queue[0][0] <= now:
            arrived.append(self._queue.popleft()[1])
        return arrived


@dataclass(eq=False)
class Connection:
    """Between an agent and a coordinator."""

    member: str
    up: Way = field(default_factory=Way)
    down: Way = field(default_factory=Way)
    closed_by_agent: bool = False
    closed_by_coordinator: bool = False
