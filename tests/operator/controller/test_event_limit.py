"""How many Events about one job there may be."""

from __future__ import annotations

import pytest

from regroup_operator.controller.event_limit import BURST, SECONDS_EACH, EventLimit
from regroup_operator.controller.work_queue import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS

ONE, OTHER = ("a", "one"), ("a", "other")


class Clock:
    """Time that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_let_through_and_then_one_after_each_pause() -> None:
    clock = Clock()
    limit = EventLimit(clock)
    assert [limit.allows(ONE) for _ in range(BURST + 2)] == [True] * BURST + [False] * 2
    clock.now += SECONDS_EACH * 2.5
    assert [limit.allows(ONE) for _ in range(3)] == [True, True, False]
    assert limit.allows(OTHER), "jobs do not share a limit"


def test_a_long_pause_allows_no_more_than_a_burst() -> None:
    clock = Clock()
    limit = EventLimit(clock)
    limit.allows(ONE)
    clock.now += 1e9
    assert [limit.allows(ONE) for _ in range(BURST + 1)].count(True) == BURST


def test_the_next_job_of_a_name_begins_anew() -> None:
    limit = EventLimit(Clock())
    while limit.allows(ONE):
        pass
    limit.forget(ONE)
    assert limit.allows(ONE)


def test_refusals_are_followed_by_pauses_that_grow_until_one_is_made() -> None:
    clock = Clock()
    limit, pauses = EventLimit(clock), list[float]()
    assert limit.due(ONE) is None
    for _ in range(12):
        assert limit.allows(ONE)
        limit.note(ONE, refused=True)
        assert not limit.allows(ONE)
        pause = limit.due(ONE)
        assert pause is not None
        pauses.append(pause)
        clock.now += pause
        assert limit.due(ONE) is None, "a job without further events is not looked at in a loop"
    ends = pytest.approx((FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS))
    assert (pauses[0], pauses[-1]) == ends
    assert pauses == sorted(pauses)
    assert limit.allows(ONE)
    limit.note(ONE, refused=False)
    assert limit.due(ONE) is None
    assert limit.allows(ONE)
