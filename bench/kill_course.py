"""The kills of a run of bench/any_script.py, and what followed each.

It reads the lines of a script: `begins at epoch N` at each start, then a line for each epoch.
"""

from __future__ import annotations

import asyncio
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

_BEGINS = re.compile(r"begins at epoch (\d+)")
_ENDED = re.compile(r"\bepoch (\d+): loss")
_BEFORE = 3
"""Epochs that a generation ends before the next kill."""


@dataclass(frozen=True)
class Kill:
    """A kill to come."""

    what: Literal["rank", "worker"]
    number: int
    share: float
    """When within an epoch, 0 to 1."""


@dataclass(frozen=True)
class Killed:
    """What followed a kill."""

    what: Literal["rank", "worker"]
    seconds: float
    """To the end of the next epoch, less a usual epoch."""
    repeated: int
    """Epochs that were reported before and trained again."""


@dataclass
class KillCourse:
    """Kills one part after the other. `read` gets every line, in a running event loop."""

    kills: Sequence[Kill]
    strike: Callable[[Kill], object] = lambda _kill: None
    found: list[Killed] = field(default_factory=list)
    _ended: list[float] = field(default_factory=list)
    """When the epochs of this generation ended."""
    _usual: float = 0.0
    """Seconds of an epoch."""
    _epoch: int = 0
    """The last that ended."""
    _first: int = 0
    """Where this generation began."""
    _struck: float | None = None
    _began: bool = False
    """Whether a generation has begun since the last kill."""

    def read(self, line: str) -> None:
        """A line that a rank has printed."""
        if begins := _BEGINS.search(line):
            self._first, self._ended, self._began = int(begins[1]), [], True
        elif ended := _ENDED.search(line):
            self._end_epoch(int(ended[1]), _now())

    def waits(self) -> float:
        """Seconds since a kill after which no epoch has ended; 0 when there is none."""
        return 0.0 if self._struck is None else max(0.0, _now() - self._struck)

    def _end_epoch(self, epoch: int, now: float) -> None:
        self._ended.append(now)
        if self._struck is not None and self._began:
            seconds = now - self._struck - self._usual
            kill = self.kills[len(self.found)]
            self.found.append(Killed(kill.what, seconds, max(0, self._epoch - self._first)))
            self._struck = None
        self._epoch = epoch
        if self._struck is None and len(self._ended) == _BEFORE and self._left:
            pairs = zip(self._ended, self._ended[1:], strict=False)
            self._usual = statistics.median(later - end for end, later in pairs)
            kill = self.kills[len(self.found)]
            self._struck, self._began = now + kill.share * self._usual, False
            asyncio.get_running_loop().call_at(self._struck, self._kill, kill)

    @property
    def _left(self) -> bool:
        return len(self.found) < len(self.kills)

    def _kill(self, kill: Kill) -> None:
        self._struck = _now()
        self.strike(kill)


def _now() -> float:
    return asyncio.get_running_loop().time()
