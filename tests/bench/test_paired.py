"""The confidence interval of a median."""

from __future__ import annotations

import random
import statistics

import pytest

from bench.paired import median_interval


def test_fifteen_values_are_bounded_by_their_fourth_and_their_twelfth() -> None:
    found = median_interval(range(1, 16))
    assert (found.low, found.median, found.high) == (4, 8, 12)


def test_the_interval_holds_the_true_median_as_often_as_it_says() -> None:
    dice = random.Random(0)
    found = [median_interval([dice.lognormvariate(0, 1) for _ in range(21)]) for _ in range(2000)]
    held = statistics.mean(interval.low <= 1.0 <= interval.high for interval in found)
    assert 0.95 <= held <= 0.99


def test_a_few_values_bound_nothing() -> None:
    with pytest.raises(ValueError, match="at least 6"):
        median_interval([1.0] * 5)
