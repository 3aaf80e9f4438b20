"""What ranks have committed, read from their memory while they run.

A rank notes each commit, step and wall clock, in one page that it shares with its parent
(docs/design/0030-what-a-soak-judges.md). So its newest commit can be read even where the volume
takes no history and nobody reports.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from soak.evidence import Sample
from soak.process import Process

COMMIT = struct.Struct("qd")
"""Step, and seconds since the epoch."""
SHARED = "rw-s"
ANONYMOUS = "/dev/zero (deleted)"
"""How the kernel names memory that processes share without a file."""
OLDEST_SECONDS, AHEAD_SECONDS = 30.0, 1.0
"""A commit that seems older, or newer than now, has the time of a clock that is wrong."""


@dataclass(frozen=True)
class RankMemory:
    """Where a rank notes its commits."""

    process: Process
    pages: tuple[int, ...]
    """Addresses: the page of a rank that its parent had before may be among them."""

    @classmethod
    def of(cls, pid: int) -> RankMemory:
        """Raises LookupError and OSError when it is gone."""
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return cls(Process.of(pid), tuple(_pages(lines)))

    def commits(self, now: float) -> Iterator[Sample]:
        """Those noted there that are not older than `OLDEST_SECONDS`; none when it is gone."""
        memory = Path(f"/proc/{self.process.pid}/mem")
        with contextlib.suppress(OSError, struct.error), memory.open("rb", buffering=0) as file:
            for page in self.pages:
                file.seek(page)
                step, moment = COMMIT.unpack(file.read(COMMIT.size))
                if -AHEAD_SECONDS <= now - moment <= OLDEST_SECONDS and step > 0:
                    yield Sample(moment, step)


def newest(ranks: Iterable[RankMemory], now: float) -> Sample | None:
    """The latest commit of which two ranks know; None where none was made of late.

    A rank that is cut off may have seen a commit alone. No other rank can make that step, so it
    does not count as committed.
    """
    found = [max(rank.commits(now), key=_by_time, default=None) for rank in ranks]
    known = sorted((one for one in found if one), key=lambda one: one.step or 0)
    return known[-2] if len(known) > 1 else None


def _by_time(commit: Sample) -> float:
    return commit.time


def _pages(lines: Iterable[str]) -> Iterator[int]:
    """Addresses of single pages that are shared without a file, by lines of /proc/PID/maps."""
    for line in lines:
        if line.endswith(ANONYMOUS) and line.split()[1] == SHARED:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if end - start == mmap.PAGESIZE:
                yield start
