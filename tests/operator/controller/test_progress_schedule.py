"""Writes of progress alone, of many jobs, in virtual time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from regroup_operator.controller.progress_schedule import (
    INTERVAL_SECONDS,
    WRITES_A_SECOND,
    ProgressSchedule,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def run(jobs: int, seconds: float) -> tuple[Counter[int], Counter[int]]:
    """Each job asks when it is due, and writes then. Second -> writes; job -> writes."""
    clock, each, by_second = Clock(), Counter[int](), Counter[int]()
    schedule = ProgressSchedule(clock, random.Random(7).random)
    start = clock.now
    for job in range(jobs):
        schedule.seconds_left(job)
    due = {job: clock.now + schedule.seconds_left(job) for job in range(jobs)}
    while (job := min(due, key=lambda job: due[job])) is not None:
        clock.now = due[job]
        if clock.now - start >= seconds:
            return by_second, each
        assert schedule.seconds_left(job) < 1e-6
        schedule.written(job)
        by_second[int(clock.now - start)] += 1
        each[job] += 1
        due[job] = clock.now + schedule.seconds_left(job)
    raise AssertionError


def test_a_few_jobs_write_every_thirty_seconds() -> None:
    _, each = run(10, seconds=300)
    assert set(each.values()) <= {9, 10, 11}


@pytest.mark.parametrize("jobs", [600, 2000])
def test_many_jobs_that_start_together_write_in_turn_and_none_is_left_out(jobs: int) -> None:
    seconds = 4 * jobs / WRITES_A_SECOND
    by_second, each = run(jobs, seconds)
    assert max(by_second.values()) <= 3 * WRITES_A_SECOND, "no burst"
    assert sum(by_second.values()) <= 1.1 * WRITES_A_SECOND * seconds
    assert len(each) == jobs
    assert max(each.values()) - min(each.values()) <= 2


def test_another_write_of_the_status_counts_and_a_job_that_is_gone_is_forgotten() -> None:
    clock = Clock()
    schedule = ProgressSchedule(clock, lambda: 0.5)
    assert schedule.seconds_left("a") == INTERVAL_SECONDS / 2
    schedule.written("a")
    assert schedule.seconds_left("a") == INTERVAL_SECONDS
    clock.now += INTERVAL_SECONDS + 1
    assert schedule.seconds_left("a") == 0.0
    schedule.forget("a")
    assert schedule.seconds_left("a") == INTERVAL_SECONDS / 2
