"""When many coordinators that fail at once are no evidence of their death."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_operator.controller.outage_breaker import (
    FEWEST_COORDINATORS,
    OPEN_SECONDS,
    TOGETHER_SECONDS,
    TOO_MANY,
    OutageBreaker,
)


def after_failures(count: int, followed: int, every: float = 0.0) -> OutageBreaker:
    """A breaker after failures of so many coordinators, the last one at time 0."""
    breaker = OutageBreaker()
    for number in range(count):
        breaker.note_failure(number, followed, (number - count + 1) * every)
    return breaker


@pytest.mark.parametrize(
    ("failed", "followed", "opens"),
    [(2, 10, False), (3, 10, True), (9, 9, False), (200, 1000, False), (201, 1000, True)],
)
def test_more_than_a_fifth_of_ten_coordinators_or_more_open_it(
    failed: int, followed: int, opens: bool
) -> None:
    assert after_failures(failed, followed).is_open(0.0) == opens


def test_one_coordinator_that_fails_over_and_over_counts_once() -> None:
    breaker = OutageBreaker()
    for second in range(100):
        breaker.note_failure("one", 10, second / 10)
    assert not breaker.is_open(10.0)


def test_failures_that_are_far_apart_do_not_add_up() -> None:
    assert not after_failures(5, 10, every=TOGETHER_SECONDS).is_open(0.0)


def test_it_closes_a_minute_after_the_last_failure_that_was_one_too_many() -> None:
    breaker = after_failures(3, 10)
    assert breaker.is_open(OPEN_SECONDS - 0.1)
    assert not breaker.is_open(OPEN_SECONDS)
    for number in range(3):
        breaker.note_failure(number, 10, 30.0)
    assert breaker.is_open(30.0 + OPEN_SECONDS - 0.1)


@given(st.lists(st.tuples(st.integers(0, 19), st.floats(0, 5)), max_size=100))
def test_it_is_open_exactly_where_counting_says_so(failures: list[tuple[int, float]]) -> None:
    breaker, now, seen, opened = OutageBreaker(), 0.0, list[tuple[int, float]](), float("-inf")
    for key, pause in failures:
        now += pause
        seen.append((key, now))
        breaker.note_failure(key, 20, now)
        together = {k for k, at in seen if at >= now - TOGETHER_SECONDS}
        if len(together) > TOO_MANY * 20 >= TOO_MANY * FEWEST_COORDINATORS:
            opened = now
        assert breaker.is_open(now) == (now < opened + OPEN_SECONDS)
