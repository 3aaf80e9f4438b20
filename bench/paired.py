"""Two ways of doing the same, measured in pairs: the median of their ratio and its confidence interval. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """Where a median lies."""

    low: float
    median: float
    high: float


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of independent values, and the narrowest pair of them that holds the true one at least so surely.

    It is the interval of the sign test: how many of n values lie below their distribution's median is binomial, with
    1/2, whatever that distribution is. Raises ValueError where there are too few values.
    """
    ordered, count = sorted(values), len(values)
    outside = [lower for lower in range(1, count // 2 + 1) if 1 - 2 * _at_most(lower - 1, count) >= confidence]
    if not outside:
        raise ValueError(f"{count} values: at least 6 are needed for an interval of 95 %")
    lower = max(outside)
    return Interval(ordered[lower - 1], statistics.median(ordered), ordered[count - lower])


def _at_most(successes: int, count: int) -> float:
    """Probability of no more heads than that."""
    return float(sum(math.comb(count, number) for number in range(successes + 1)) / 2**count)
