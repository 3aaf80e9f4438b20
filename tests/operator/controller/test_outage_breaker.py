"""When many coordinators that fail at once are no evidence of their death, and of whose."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from regroup_operator.controller.outage_breaker import (
    FEWEST_COORDINATORS,
    FEWEST_FAILURES,
    OPEN_SECONDS,
    TOGETHER_SECONDS,
    TOO_MANY,
    OutageBreaker,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def after_failures(count: int, followed: int, every: float = 0.0) -> OutageBreaker:
    """A breaker after failures of so many coordinators of namespace a, the last one at time 0."""
    breaker = OutageBreaker()
    for number in range(count):
        breaker.note_failure(("a", str(number)), {"a": followed}, (number - count + 1) * every)
    return breaker


def open_for(*namespaces: tuple[int, int]) -> str:
    """The namespaces a, b ... for which a breaker is open once so many of so many coordinators of
    each have failed.
    """
    breaker = OutageBreaker()
    followed = {name: count for name, (_, count) in zip(LETTERS, namespaces, strict=False)}
    for name, (failed, _) in zip(LETTERS, namespaces, strict=False):
        for number in range(failed):
            breaker.note_failure((name, str(number)), followed, 0.0)
    return "".join(name for name in followed if breaker.is_open(name, 0.0))


@pytest.mark.parametrize(
    ("failed", "followed", "opens"),
    [(2, 10, False), (3, 10, True), (9, 9, False), (200, 1000, False), (201, 1000, True)],
)
def test_more_than_a_fifth_of_ten_coordinators_or_more_open_it(
    failed: int, followed: int, opens: bool
) -> None:
    assert after_failures(failed, followed).is_open("a", 0.0) == opens


def test_one_namespace_cannot_open_it_for_another() -> None:
    """A tenant makes a thousand coordinators fail, and one of somebody else dies meanwhile."""
    assert open_for((1000, 1000), (0, 1)) == "a"
    assert open_for((1000, 1000), (1, 1)) == "a"
    assert open_for((1000, 1000), (1, 3), (0, 2)) == "a"
    assert open_for((1000, 1000), (10, 50), (0, 5)) == "a"


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 20])
def test_one_namespace_does_not_make_a_lost_node_of_another_an_outage(failing: int) -> None:
    """Two of the nine coordinators of b are lost, which alone are too few to conclude from."""
    assert "b" not in open_for((failing, failing), (2, 9), (0, 0))


def test_an_outage_opens_it_for_all_also_for_a_namespace_of_few_coordinators() -> None:
    assert open_for((30, 30), (2, 2)) == "ab"
    assert open_for((8, 8), (1, 1), (1, 1)) == "abc"
    assert open_for((30, 30), (3, 3), (0, 1)) == "abc"
    assert open_for(*[(1, 1)] * 8, (0, 0)) == ""
    assert open_for((4, 4), *[(1, 1)] * 6) == "abcdefg"


def test_a_part_of_the_network_that_fails_opens_it_for_those_who_are_there() -> None:
    assert open_for((30, 30), (12, 12), (0, 100)) == "ab"


def test_an_outage_opens_it_for_all_where_each_namespace_has_few_coordinators() -> None:
    assert open_for(*[(1, 1)] * 3, *[(0, 1)] * 8) == "abcdefghijk"
    assert open_for((2, 2), (2, 2), (1, 2), *[(0, 2)] * 7) == "abcdefghij"
    assert open_for((3, 3), (2, 3), (2, 3), *[(0, 3)] * 7) == "abcdefghij"


SHAPES = st.lists(
    st.integers(1, 40).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))),
    min_size=1,
    max_size=12,
)
"""Namespaces: so many coordinators fail, of so many."""


@given(st.lists(st.integers(1, 3), min_size=10, max_size=24), st.integers(-1, 1), st.randoms())
def test_more_than_a_fifth_open_it_for_all_where_no_namespace_has_more_than_a_tenth(
    counts: list[int], more: int, random: Random
) -> None:
    everywhere = sum(counts)
    assume(max(counts) <= everywhere / 10)
    failed = int(TOO_MANY * everywhere) + more
    where = Counter(random.sample(range(len(counts)), failed, counts=counts))
    is_open = open_for(*((where[place], count) for place, count in enumerate(counts)))
    assert len(is_open) == (len(counts) if failed > TOO_MANY * everywhere else 0)


@given(st.integers(0, 60).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))), SHAPES)
def test_one_namespace_opens_it_for_no_other_where_less_than_a_tenth_of_the_others_fail(
    tenant: tuple[int, int], others: list[tuple[int, int]]
) -> None:
    everywhere, failed = sum(n for _, n in others), sum(f for f, _ in others)
    assume(failed < FEWEST_FAILURES or failed <= TOO_MANY / 2 * everywhere)
    without_failures = [name for name, (f, _) in zip(LETTERS[1:], others, strict=False) if not f]
    assert not set(without_failures) & set(open_for(tenant, *others))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=2, max_size=6))
def test_a_namespace_whose_coordinators_all_answer_is_not_affected_by_another_one(
    others: list[tuple[int, int]],
) -> None:
    worst = (200, 200)
    few = [(0, count) for _, count in others]
    assert open_for(worst, *few) == "a"


def test_namespaces_that_are_gone_are_forgotten() -> None:
    breaker = OutageBreaker()
    for number in range(100):
        name = f"gone{number}"
        for job in range(10):
            breaker.note_failure((name, str(job)), {name: 10}, number * OPEN_SECONDS)
    assert len(breaker._open_until) == 1
    assert len(breaker._failed) == 10


def test_one_coordinator_that_fails_over_and_over_counts_once() -> None:
    breaker = OutageBreaker()
    for second in range(100):
        breaker.note_failure(("a", "one"), {"a": 10}, second / 10)
    assert not breaker.is_open("a", 10.0)


def test_failures_that_are_far_apart_do_not_add_up() -> None:
    assert not after_failures(5, 10, every=TOGETHER_SECONDS).is_open("a", 0.0)


def test_it_closes_a_minute_after_the_last_failure_that_was_one_too_many() -> None:
    breaker = after_failures(3, 10)
    assert breaker.is_open("a", OPEN_SECONDS - 0.1)
    assert not breaker.is_open("a", OPEN_SECONDS)
    for number in range(3):
        breaker.note_failure(("a", str(number)), {"a": 10}, 30.0)
    assert breaker.is_open("a", 30.0 + OPEN_SECONDS - 0.1)


@given(st.lists(st.tuples(st.integers(0, 19), st.floats(0, 5)), max_size=100))
def test_it_is_open_exactly_where_counting_says_so(failures: list[tuple[int, float]]) -> None:
    breaker, now, seen, opened = OutageBreaker(), 0.0, list[tuple[int, float]](), float("-inf")
    for key, pause in failures:
        now += pause
        seen.append((key, now))
        breaker.note_failure(("a", str(key)), {"a": 20}, now)
        together = {k for k, at in seen if at >= now - TOGETHER_SECONDS}
        if len(together) > TOO_MANY * 20 >= TOO_MANY * FEWEST_COORDINATORS:
            opened = now
        assert breaker.is_open("a", now) == (now < opened + OPEN_SECONDS)
