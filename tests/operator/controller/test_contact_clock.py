"""The clock of contact stands while this process itself is late."""

from __future__ import annotations

import pytest

from regroup_operator.controller.contact_clock import LONGEST_TICK_SECONDS, ContactClock


class Time:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time() -> Time:
    return Time()


def test_it_runs_as_any_clock_while_the_loop_is_in_time(time: Time) -> None:
    clock = ContactClock(time)
    began = clock.now()
    for _ in range(50):
        time.seconds += 0.1
        clock.tick()
    assert clock.now() - began == pytest.approx(5.0)


def test_a_loop_that_stood_for_a_minute_adds_no_more_than_one_tick(time: Time) -> None:
    clock = ContactClock(time)
    began = clock.now()
    time.seconds += 60.0
    assert clock.now() - began == pytest.approx(LONGEST_TICK_SECONDS)
    clock.tick()
    assert clock.now() - began == pytest.approx(LONGEST_TICK_SECONDS)


def test_it_never_goes_back(time: Time) -> None:
    clock = ContactClock(time)
    last = clock.now()
    for late in (0.05, 3.0, 0.1, 0.0, 0.3, 0.01):
        time.seconds += late
        before = clock.now()
        clock.tick()
        assert last <= before <= clock.now()
        last = clock.now()
