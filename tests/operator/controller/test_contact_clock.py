"""The clock of contact stands while this process itself is late."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from regroup_operator.controller.contact_clock import (
    LONGEST_TICK_SECONDS,
    TICK_SECONDS,
    ContactClock,
)


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


async def ticks_until_it_ends(clock: ContactClock, time: Time, seconds_a_tick: float) -> int:
    """Of a time-out of a second."""
    count = 0
    with contextlib.suppress(TimeoutError):
        async with clock.timeout(1.0):
            while count < 1000:
                count += 1
                time.seconds += seconds_a_tick
                clock.tick()
                await asyncio.sleep(0)
    return count


async def test_a_time_out_ends_in_its_time(time: Time) -> None:
    assert await ticks_until_it_ends(ContactClock(time), time, TICK_SECONDS) in (10, 11)


async def test_a_time_out_leaves_a_loop_that_is_late_some_rounds(time: Time) -> None:
    assert await ticks_until_it_ends(ContactClock(time), time, 60.0) in (5, 6)


async def test_a_time_out_that_is_lifted_or_left_does_not_end(time: Time) -> None:
    clock = ContactClock(time)
    async with clock.timeout(1.0):
        pass
    async with clock.timeout(1.0) as set_limit:
        set_limit(None)
        for _ in range(20):
            time.seconds += TICK_SECONDS
            clock.tick()
        await asyncio.sleep(0)


async def test_a_time_out_that_is_lifted_just_after_its_end_does_not_end(time: Time) -> None:
    clock = ContactClock(time)
    async with clock.timeout(1.0) as set_limit:
        for _ in range(20):
            time.seconds += TICK_SECONDS
            clock.tick()
        set_limit(None)
        for _ in range(3):
            await asyncio.sleep(0)


async def test_a_time_out_that_is_put_off_ends_in_its_new_time(time: Time) -> None:
    clock, ticks = ContactClock(time), 0
    with contextlib.suppress(TimeoutError):
        async with clock.timeout(1.0) as set_limit:
            for ticks in range(1, 30):
                if ticks <= 10:
                    set_limit(1.0)
                time.seconds += TICK_SECONDS
                clock.tick()
                await asyncio.sleep(0)
    assert ticks in (19, 20)


async def test_each_of_many_time_outs_ends_in_its_own_time(time: Time) -> None:
    clock, ended = ContactClock(time), list[float]()

    async def wait(seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with clock.timeout(seconds):
                await asyncio.Event().wait()
        ended.append(seconds)

    async with asyncio.TaskGroup() as group:
        for seconds in (3.0, 1.0, 2.0):
            group.create_task(wait(seconds))
        for number in range(40):
            await asyncio.sleep(0)
            time.seconds += TICK_SECONDS
            clock.tick()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(ended) in (number // 10, (number + 1) // 10)
    assert ended == [1.0, 2.0, 3.0]
