"""Notices that many coordinators stop answering at once. Then the fault is likely the operator's or
the network's, and agents reached over that network are no witnesses. The caller gives the time.
"""

from __future__ import annotations

from collections.abc import Hashable

FEWEST_COORDINATORS = 10
"""Below so many, nothing can be concluded from how many fail."""
TOO_MANY = 0.2
"""More than this part of the coordinators is no coincidence."""
TOGETHER_SECONDS = 10.0
"""Failures within so long count as simultaneous."""
OPEN_SECONDS = 60.0
"""How long only the evidence of pods and nodes counts afterwards."""


class OutageBreaker:
    """Open while too many coordinators fail together, and for a minute after that."""

    def __init__(self) -> None:
        self._failed: dict[Hashable, float] = {}
        """Coordinator -> when it last failed to answer; the oldest first."""
        self._open_until = float("-inf")

    def note_failure(self, key: Hashable, followed: int, now: float) -> None:
        """The coordinator of this job did not answer. `followed`: how many are followed."""
        self._failed.pop(key, None)
        self._failed[key] = now
        since = now - TOGETHER_SECONDS
        while self._failed[oldest := next(iter(self._failed))] < since:  # never the newest
            del self._failed[oldest]
        if followed >= FEWEST_COORDINATORS and len(self._failed) > TOO_MANY * followed:
            self._open_until = now + OPEN_SECONDS

    def is_open(self, now: float) -> bool:
        """Whether only the evidence of pods and nodes counts."""
        return now < self._open_until
