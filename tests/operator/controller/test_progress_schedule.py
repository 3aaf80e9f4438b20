"""Writes of progress alone, of many jobs, in virtual time."""

from __future__ import annotations

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
    schedule = ProgressSchedule(clock)
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


@pytest.mark.parametrize("jobs", [150, 1000])
def test_many_jobs_that_start_together_write_in_turn_and_none_is_left_out(jobs: int) -> None:
    seconds = 4 * jobs / WRITES_A_SECOND
    by_second, each = run(jobs, seconds)
    assert max(by_second.values()) <= WRITES_A_SECOND + 1, "no burst"
    assert sum(by_second.values()) <= WRITES_A_SECOND * seconds + 1
    assert len(each) == jobs
    assert max(each.values()) - min(each.values()) <= 2


def test_another_write_of_the_status_counts_and_a_job_that_is_gone_is_forgotten() -> None:
    clock = Clock()
    schedule = ProgressSchedule(clock)
    assert schedule.seconds_left("a") == 0.0
    schedule.written("a")
    assert schedule.seconds_left("a") == INTERVAL_SECONDS
    clock.now += INTERVAL_SECONDS + 1
    assert schedule.seconds_left("a") == 0.0
    schedule.forget("a")
    assert schedule.seconds_left("a") == 0.0


def test_jobs_whose_status_is_written_all_the_time_put_off_no_other() -> None:
    clock = Clock()
    schedule = ProgressSchedule(clock)
    for job in range(300):
        schedule.written(job)
    for _ in range(10_000):
        clock.now += 0.01
        schedule.written(0)
        assert schedule.seconds_left(0) < 300 / WRITES_A_SECOND + 0.001
    assert schedule.seconds_left("new") <= 301 / WRITES_A_SECOND
    assert all(schedule.seconds_left(job) == 0.0 for job in range(1, 300))
