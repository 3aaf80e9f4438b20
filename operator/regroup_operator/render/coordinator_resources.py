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
from regroup_trainer.protocol.generation import PIECE_CHARACTERS
from regroup_trainer.protocol.rank_messages import progress_seconds

MIB = 1024 * 1024
PROCESS_BYTES = 55 * MIB
"""Of the process and what it has imported."""
MEMBER_BYTES, RANK_BYTES = 34 * 1024, 4200
"""What it keeps of each worker and rank."""
UNSENT_BYTES = PIECE_CHARACTERS
"""Of each worker: the piece of a record that it has asked for. What a slow network has not taken
yet lies in the kernel's buffers, which count as the pod's.
"""
LOOP_CPU, RANK_CPU = Fraction(53, 10_000), Fraction(20, 1_000_000)
"""Cores, for the square root of the workers, and for each rank that they report on in a second: the
more messages there are, the more of them the event loop takes at once.
"""
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
    cpu = min(training_cores(workers, ranks), MOST_CPU)
    memory = Fraction(kept_bytes(workers, ranks))
    least = {
        "requests": {"cpu": cpu, "memory": memory},
        "limits": {
            "cpu": LIMIT_FACTOR * cpu,
            "memory": LIMIT_FACTOR * memory + UNSENT_BYTES * workers,
        },
    }
    return {
        kind: _raised(amounts, least[kind]) if kind in least else amounts
        for kind, amounts in given.items()
    }


def kept_bytes(workers: int, ranks: int) -> int:
    """Memory of a coordinator of so many workers and ranks."""
    return PROCESS_BYTES + MEMBER_BYTES * workers + RANK_BYTES * ranks


def training_cores(workers: int, ranks: int) -> Fraction:
    """What a coordinator of so many workers and ranks takes while they train."""
    reported = ranks / Fraction(progress_seconds(workers))
    return LOOP_CPU * Fraction(math.sqrt(workers)) + RANK_CPU * reported


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
