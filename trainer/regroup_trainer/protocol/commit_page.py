"""The last commit of a rank, in a page of memory that its parent maps, too.

Steps may be quicker than messages. The page shows the commits that a killed rank had not reported
yet, so that lost steps are counted exactly.
"""

from __future__ import annotations

import mmap
import struct

_COMMIT = struct.Struct("qd")


class CommitPage:
    """(step, wall clock) of the newest commit; (0, 0.0) before the first.

    It is made before the fork, and shared after it.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def write(self, step: int, time: float) -> None:
        """Note a commit."""
        _COMMIT.pack_into(self._memory, 0, step, time)

    def read(self) -> tuple[int, float]:
        """The newest commit."""
        step, time = _COMMIT.unpack_from(self._memory, 0)
        return step, time

    def close(self) -> None:
        """Unmap it here."""
        self._memory.close()
