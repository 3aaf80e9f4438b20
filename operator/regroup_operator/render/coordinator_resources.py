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
PROCESS_BYTES = 53 * MIB
"""Of the process and what it has imported."""
MEMBER_BYTES, RANK_BYTES = 39 * 1024, 4500
"""What it keeps of each worker and rank."""
RECORD_BYTES, SHARD_BYTES = 228, 18
"""Of each worker and rank in the message that begins a generation. It is in memory once, but each
worker is sent all of it, and what a slow network has not taken yet lies in the kernel's buffers,
which count as the pod's.
"""
WORKER_CPU, RANK_CPU = Fraction(4, 10_000), Fraction(15, 100_000)
"""Cores for the heartbeats of a worker, and for the reports of a rank at their highest rate."""
MOST_CPU = Fraction(1)
"""One thread does all the work. Without a limit it may take this in a recovery, whatever the
request.
"""
LIMIT_FACTOR = 2
"""Limits are so many times the requests: a limit of CPU has to leave something for a recovery."""


def resources_for(given: Mapping[str, Any], workers: int, ranks: int) -> Object:
    """`given`, a ResourceRequirements, with each amount raised to what a job of so many workers and
    ranks needs. What it does not set stays unset.
    """
    cpu = min(WORKER_CPU * workers + RANK_CPU * ranks, MOST_CPU)
    memory = Fraction(kept_bytes(workers, ranks))
    unsent = workers * (RECORD_BYTES * workers + SHARD_BYTES * ranks)
    least = {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {"cpu": LIMIT_FACTOR * cpu, "memory": LIMIT_FACTOR * memory + unsent},
    }
    return {
        kind: _raised(amounts, least[kind]) if kind in least else amounts
        for kind, amounts in given.items()
    }


def kept_bytes(workers: int, ranks: int) -> int:
    """Memory of a coordinator of so many workers and ranks."""
    return PROCESS_BYTES + MEMBER_BYTES * workers + RANK_BYTES * ranks


def _raised(amounts: Any, least: Mapping[str, Fraction]) -> Any:
    if not isinstance(amounts, Mapping):
        return amounts
    return {
        name: _larger(name, amount, least.get(name, Fraction(0)))
        for name, amount in amounts.items()
    }


def _larger(name: str, amount: Any, least: Fraction) -> Any:
    """What is no amount is refused later, with its field."""
    given = amount_of(amount)
    return amount if given is None or given >= least else _TEXTS[name](least)


_TEXTS: Mapping[str, Callable[[Fraction], str]] = {
    "cpu": lambda cores: f"{math.ceil(1000 * cores)}m",
    "memory": lambda size: f"{math.ceil(size / MIB)}Mi",
}
