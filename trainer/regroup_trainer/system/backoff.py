"""The pause between two tries after failures in a row, and how long each may take. And how often
each of many peers sends what one process reads. Pure.
"""

from __future__ import annotations

from typing import Final

MOST_PATIENCE: Final = 8.0
"""Times as long as usual."""


def retry_seconds(failures: int, first: float, longest: float) -> float:
    """Seconds to wait after `failures` failures in a row: `first` after the first one, then
    doubling up to `longest`.
    """
    return 0.0 if failures < 1 else min(longest, first * 2.0 ** min(failures - 1, 30))


def backoff_seconds(failures: int, first: float, longest: float) -> float:
    """The same where the first failure has no pause: `first` comes after the second one."""
    return retry_seconds(failures - 1, first, longest)


def turn_seconds(peers: int, a_second: float, least: float, longest: float) -> float:
    """Seconds between two messages of each of so many peers, so that all of them together send
    `a_second`; `least` where they are few, and `longest` at most.
    """
    return min(max(least, peers / a_second), longest)


class Patience:
    """How many times longer than usual to wait for an answer: twice as long after each that came
    too late.

    A try that is given up costs a busy process as much as one that succeeds. If everybody gave up
    each time, it would work for nobody, and for ever.
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, *, late: bool) -> None:
        """An answer came too late, or in time."""
        self.factor = min(2.0 * self.factor, MOST_PATIENCE) if late else 1.0
