"""A soak's plan is a function of its seed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soak.draw import FAULTS_AN_EPISODE, plan
from soak.faults import STRIKES
from soak.jobs import SHAPES
from soak.kinds import FAULTS, JOBS, FaultKind


def test_there_is_a_function_for_each_kind_of_fault_and_a_manifest_for_each_kind_of_job() -> None:
    assert {kind.name for kind in FAULTS} == set(STRIKES)
    assert {kind.name for kind in JOBS} == set(SHAPES)


@given(st.integers(), st.integers(1, 200))
def test_equal_seeds_draw_equal_plans_with_as_many_faults_as_asked_for(
    seed: int, count: int
) -> None:
    drawn = plan(seed, count, FAULTS, JOBS)
    assert drawn == plan(seed, count, FAULTS, JOBS)
    faults = [fault for episode in drawn for fault in episode.faults]
    assert [fault.number for fault in faults] == list(range(1, count + 1))
    limits = {kind.name: kind.seconds for kind in FAULTS}
    for episode in drawn:
        assert 1 <= len(episode.faults) <= FAULTS_AN_EPISODE
        for fault in episode.faults:
            least, most = limits[fault.kind]
            assert least <= fault.seconds <= most
            assert 0 <= fault.choice < 1 and 0 <= fault.job < len(episode.jobs)


def test_another_seed_draws_another_plan() -> None:
    assert plan(1, 20, FAULTS, JOBS) != plan(2, 20, FAULTS, JOBS)


def test_one_job_or_two_are_struck_at_once() -> None:
    assert {len(one.jobs) for one in plan(7, 100, FAULTS, JOBS)} == {1, 2}


@given(st.integers(), st.integers(len(FAULTS) + FAULTS_AN_EPISODE, 120))
def test_a_plan_that_is_longer_than_the_table_has_each_kind(seed: int, count: int) -> None:
    drawn = plan(seed, count, FAULTS, JOBS)
    assert {fault.kind for one in drawn for fault in one.faults} == {kind.name for kind in FAULTS}


@given(st.integers())
def test_no_job_is_struck_by_what_cannot_strike_it(seed: int) -> None:
    spares = {kind.name: kind.spares for kind in FAULTS}
    for one in plan(seed, 200, FAULTS, JOBS):
        assert not [fault for fault in one.faults if one.jobs[fault.job] in spares[fault.kind]]


def test_a_job_that_no_kind_can_strike_is_refused() -> None:
    kinds = [kind for kind in FAULTS if kind.spares]
    with pytest.raises(ValueError, match="no fault of secret-deleted strikes torchrun"):
        plan(1, 10, kinds, JOBS)


def test_a_hundred_faults_strike_each_kind_of_job() -> None:
    for seed in range(50):
        drawn = plan(seed, 100, FAULTS, JOBS)
        assert {job for one in drawn for job in one.jobs} == {kind.name for kind in JOBS}


def test_a_deck_has_as_many_cards_of_a_kind_as_it_weighs() -> None:
    kinds = (FaultKind("rare", 1), FaultKind("frequent", 9))
    faults = [fault.kind for one in plan(1, 1000, kinds, JOBS) for fault in one.faults]
    for first in range(0, 1000, 10):
        assert Counter(faults[first : first + 10]) == {"rare": 1, "frequent": 9}
        assert set(faults[first : first + 2]) == {"rare", "frequent"}


def test_a_hundred_faults_take_less_than_an_hour() -> None:
    """Each took 24.6 s besides the time until it was undone, over 325 faults of five seeds."""
    faults = [fault for one in plan(1, 10_000, FAULTS, JOBS) for fault in one.faults]
    assert 24.6 * 100 + sum(fault.seconds for fault in faults) / 100 < 3600


@pytest.mark.parametrize(("count", "kinds"), [(0, FAULTS), (1, ())])
def test_a_plan_of_nothing_is_refused(count: int, kinds: tuple[FaultKind, ...]) -> None:
    with pytest.raises(ValueError, match="at least one fault, one kind and one job"):
        plan(1, count, kinds, JOBS)
