"""Looks for the steps of a script in what its rank 0 writes, as `spec.progressPattern` says.

The template reads these lines, and has one thread for all. So lines are only noted when they come,
and looked at twice a second: the newest first, and no longer than a few milliseconds.
"""

from __future__ import annotations

import math
import time
from collections import deque

from regroup_trainer.protocol.channel import PROGRESS_SECONDS
from regroup_trainer.protocol.generation import Assignment
from regroup_trainer.protocol.progress_pattern import (
    LINE_BYTES,
    Found,
    ProgressPattern,
    has_re2,
)

_MOST_LINES = 256
"""That are kept for the next look. Between two steps a script may write other lines."""
_LOOK_SECONDS = 0.01
"""A look that has taken so long looks at no further line."""
_PAUSE_SHARE = 20.0
"""Between two looks is so many times the time of the last: a line may take a while, too."""


def make_watch(assignment: Assignment) -> LineWatch | None:
    """What looks at the lines of a rank; None where nothing does. A worker whose Python has no RE2
    refuses the pattern in the rank, where the message is seen.
    """
    pattern = assignment.record.desired.progress_pattern
    return (
        LineWatch(ProgressPattern(pattern))
        if pattern and assignment.rank == 0 and has_re2()
        else None
    )


class LineWatch:
    """The lines of one rank since the last look."""

    def __init__(self, pattern: ProgressPattern) -> None:
        self._pattern = pattern
        self._lines: deque[bytes] = deque(maxlen=_MOST_LINES)
        self._look_at = -math.inf
        """When it is time for the next look."""

    @property
    def has_new(self) -> bool:
        """Whether there are lines to look at."""
        return bool(self._lines)

    def on_line(self, line: bytes) -> None:
        """Note a line."""
        self._lines.append(line[:LINE_BYTES])

    def look(self, now: float) -> Found | None:
        """The newest step, if it is time to look, and the lines since the last look have one."""
        return self.look_now(now) if now >= self._look_at else None

    def look_now(self, now: float) -> Found | None:
        """The newest step of the lines since the last look."""
        begun = time.perf_counter()
        found = None
        while self._lines and found is None and time.perf_counter() < begun + _LOOK_SECONDS:
            found = self._pattern.find(self._lines.pop())
        self._lines.clear()
        pause = _PAUSE_SHARE * (time.perf_counter() - begun)
        self._look_at = now + max(PROGRESS_SECONDS, pause)
        return found
