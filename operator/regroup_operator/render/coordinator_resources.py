"""What a coordinator asks for, by the size of its job. Pure.

The numbers are those of `make bench NAME=coordinator_size`; docs/tasks/limits.md has its table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from regroup_operator.api.pod_types import amount_of
from regroup_operator.api.resource import Object

MIB = 1024 * 1024
PROCESS_BYTES = 55 * MIB
"""Of the process and what it has imported."""
MEMBER_BYTES, RANK_BYTES = 37 * 1024, 2 * 1024
"""What it keeps of each worker and rank."""
RECORD_BYTES, SHARD_BYTES = 228, 18
"""Of each worker and rank in the message that begins a generation. Each worker is sent a copy, and
all copies are in memory at the same time: this is what the peak consists of.
"""
RANK_CPU = Fraction(2, 1000)
"""Cores for the reports of a rank at their highest rate, in a job of 64. A report costs more in
larger jobs, but there a step takes seconds, so that reports are rarer.
"""
MOST_CPU = Fraction(1)
"""One thread does all the work. Without a limit it may take this in a recovery, whatever the
request.
"""
LIMIT_FACTOR = 2
"""Limits are so many times the requests: a generation may begin while the copies for the one before
are not sent, and a limit of CPU has to leave something for a recovery.
"""


def resources_for(given: Mapping[str, Any], workers: int, ranks: int) -> Object:
    """`given`, a ResourceRequirements, with each amount raised to what a job of so many workers and
    ranks needs. What it does not set stays unset.
    """
    least = {"cpu": min(RANK_CPU * ranks, MOST_CPU), "memory": Fraction(peak_bytes(workers, ranks))}
    factors = {"requests": 1, "limits": LIMIT_FACTOR}
    return {
        kind: _raised(amounts, least, factors[kind]) if kind in factors else amounts
        for kind, amounts in given.items()
    }


def peak_bytes(workers: int, ranks: int) -> int:
    """Memory of a coordinator when a generation of so many workers and ranks begins."""
    kept = MEMBER_BYTES * workers + RANK_BYTES * ranks
    copies = workers * (RECORD_BYTES * workers + SHARD_BYTES * ranks)
    return PROCESS_BYTES + kept + copies


def _raised(amounts: Any, least: Mapping[str, Fraction], factor: int) -> Any:
    if not isinstance(amounts, Mapping):
        return amounts
    needed = {name: factor * least.get(name, Fraction(0)) for name in amounts}
    return {name: _larger(name, amount, needed[name]) for name, amount in amounts.items()}


def _larger(name: str, amount: Any, least: Fraction) -> Any:
    """What is no amount is refused later, with its field."""
    given = amount_of(amount)
    return amount if given is None or given >= least else _TEXTS[name](least)


_TEXTS: Mapping[str, Callable[[Fraction], str]] = {
    "cpu": lambda cores: f"{math.ceil(1000 * cores)}m",
    "memory": lambda size: f"{math.ceil(size / MIB)}Mi",
}
