"""How often something may be done."""

from __future__ import annotations

from regroup_operator.controller.rate_limiter import RateLimiter


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def done(limiter: RateLimiter, tries: int) -> int:
    return sum(limiter.allows() for _ in range(tries))


def test_no_more_than_so_many_at_once_and_so_many_a_second_after_that() -> None:
    clock = Clock()
    limiter = RateLimiter(20, clock)
    assert done(limiter, 100) == 20
    clock.now += 0.5
    assert done(limiter, 100) == 10


def test_nothing_is_saved_up_for_later() -> None:
    clock = Clock()
    limiter = RateLimiter(20, clock)
    clock.now += 3600
    assert done(limiter, 100) == 20
