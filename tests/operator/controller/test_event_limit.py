"""How many Events about one job there may be."""

from __future__ import annotations

from regroup_operator.controller.event_limit import BURST, SECONDS_EACH, EventLimit

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
