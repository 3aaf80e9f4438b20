"""How fast processes grow, by what they had in use after each fault. Pure.

Processes are young: agents seldom live through ten faults. And at first they grow, in steps, each
when they do something for the first time: an operator by 2 to 4 MB within forty faults. A slope
over such lives measures these steps. No curve separates them from a leak: a short life may be all
rise.

The kind of a fault does. A first power cut may need memory for good, a second one of the same
process may not. So growth is the mean by which a process is larger after a fault than after the one
before, over the faults of kinds that the process had lived through before. No long life is needed,
all processes of a role count together, and sums of several runs can be added. In the logs of seven
seeds, operators grew by 7.2 MB per 100 faults of kinds that were new to them, and by 4.5 MB per 100
others; agents by 5.8 and 1.1 MB, coordinators by 6.9 and 3.2 MB.

Two limits: what rises with age alone counts as growth, after the first faults of a life. And the
first faults of a campaign count, since every process begins anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MOST = 5.0
"""MB per 100 faults by which a process may grow."""
ERRORS = 2.0
"""So many standard errors above that growth is a finding."""
NEW_FAULTS = 3
"""A process that has just started may grow."""
LEAST = 20
"""Differences without which nothing is known."""


class Memory(NamedTuple):
    """What a process had in use after a fault."""

    role: str
    """operator (that leads), standby, coordinator or worker."""
    process: str
    """Distinct from that of another process."""
    fault: int
    size: float
    """MB."""


@dataclass(frozen=True)
class Growth:
    """The sums of the differences of a role's processes."""

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def __add__(self, other: Growth) -> Growth:
        return Growth(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )

    @property
    def mebibytes(self) -> float | None:
        """MB per 100 faults; None: there were too few to know."""
        return 100 * self.total / self.count if self.count >= LEAST else None

    @property
    def error(self) -> float:
        """The standard error of that."""
        variance = self.squares / self.count - (self.total / self.count) ** 2
        return 100 * math.sqrt(max(variance, 0.0) / (self.count - 1))


def memory_growth(samples: Iterable[Memory], kinds: Mapping[int, str]) -> Mapping[str, Growth]:
    """Role -> the growth of its processes, by the numbers and kinds of a campaign's faults."""
    lives: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for one in samples:
        lives.setdefault((one.role, one.process), []).append((one.fault, one.size))
    grown: dict[str, Growth] = {}
    for (role, _), life in lives.items():
        found = list(_differences(life, kinds))
        sums = Growth(len(found), sum(found), sum(one * one for one in found))
        grown[role] = grown.get(role, Growth()) + sums
    return grown


def of_log(lines: Iterable[str]) -> Mapping[str, Growth]:
    """What the log of a campaign says."""
    entries = [json.loads(line) for line in lines]
    kinds = {one["number"]: one["kind"] for one in entries if one["entry"] == "fault"}
    samples = (sample for one in entries if one["entry"] == "memory" for sample in one["samples"])
    return memory_growth((Memory(*sample) for sample in samples), kinds)


def leaks(grown: Mapping[str, Growth]) -> Iterator[str]:
    """A sentence for each role whose processes grow too fast."""
    for role, growth in grown.items():
        found = growth.mebibytes
        if found is not None and found - ERRORS * growth.error > MOST:
            yield (
                f"memory of {role}: {found:.1f} MB more per 100 faults (standard error "
                f"{growth.error:.1f}), where {MOST:.0f} MB are allowed"
            )


def _differences(life: Sequence[tuple[int, float]], kinds: Mapping[int, str]) -> Iterator[float]:
    known: set[str] = set()
    for age, ((_, before), (fault, size)) in enumerate(pairwise(life), 1):
        if age > NEW_FAULTS and kinds[fault] in known:
            yield size - before
        known.add(kinds[fault])
