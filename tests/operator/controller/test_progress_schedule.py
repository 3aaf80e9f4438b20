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


class Jobs:
    """Each has a round when its progress is due, and writes then if it may."""

    def __init__(self, jobs: int) -> None:
        self.clock = Clock()
        self.schedule = ProgressSchedule(self.clock)
        self.times: list[float] = []
        self.each = Counter[int]()
        self.rounds = 0
        for job in range(jobs):
            self.schedule.seconds_left(job)
        self.next = {job: self.clock.now + self.schedule.seconds_left(job) for job in range(jobs)}

    def run(self, seconds: float, *, lateness: float = 0.0, fails: bool = False) -> None:
        """Each round comes up to `lateness` late."""
        until = self.clock.now + seconds
        while (at := self.next[job := min(self.next, key=lambda job: self.next[job])]) < until:
            self.clock.now = max(self.clock.now, at + lateness * (job % 7) / 6)
            self.rounds += 1
            if self.schedule.begin(job):
                self.times.append(self.clock.now)
                self.each[job] += 1
                if not fails:
                    self.schedule.written(job)
            self.next[job] = self.clock.now + max(self.schedule.seconds_left(job), 1e-3)
        self.clock.now = max(self.clock.now, until)

    def most_in_a_second(self) -> int:
        """Writes in the second that has the most."""
        began = 0
        most = 0
        for number, time in enumerate(self.times, start=1):
            while self.times[began] <= time - 1.0:
                began += 1
            most = max(most, number - began)
        return most


def test_a_few_jobs_write_every_thirty_seconds() -> None:
    jobs = Jobs(10)
    jobs.run(300)
    assert set(jobs.each.values()) <= {9, 10, 11}


@pytest.mark.parametrize("lateness", [0.0, 0.1])
@pytest.mark.parametrize("count", [150, 1000])
def test_many_jobs_that_start_together_write_in_turn_and_none_is_left_out(
    count: int, lateness: float
) -> None:
    jobs, seconds = Jobs(count), 4 * count / WRITES_A_SECOND
    jobs.run(seconds, lateness=lateness)
    assert jobs.most_in_a_second() <= WRITES_A_SECOND + 1, "no burst"
    assert 0.9 * WRITES_A_SECOND * seconds < len(jobs.times) <= WRITES_A_SECOND * seconds + 1
    assert len(jobs.each) == count
    assert max(jobs.each.values()) - min(jobs.each.values()) <= 2


def test_jobs_that_are_all_overdue_after_a_pause_write_in_turn() -> None:
    jobs = Jobs(300)
    jobs.run(100)
    jobs.clock.now += 500
    jobs.times.clear()
    jobs.rounds = 0
    jobs.run(90)
    assert jobs.most_in_a_second() <= WRITES_A_SECOND + 1
    assert min(jobs.each.values()) >= 2
    assert jobs.rounds < 3 * 300, "each is asked again when it is its turn"


def test_writes_that_fail_are_tried_again_at_the_same_pace() -> None:
    jobs = Jobs(300)
    jobs.run(120, fails=True)
    assert jobs.most_in_a_second() <= WRITES_A_SECOND + 1
    assert min(jobs.each.values()) >= 1
    assert jobs.rounds < 2 * len(jobs.times)


def test_jobs_whose_statuses_were_written_for_other_reasons_come_in_turn_later() -> None:
    jobs = Jobs(300)
    for _ in range(5):
        for job in range(300):
            jobs.schedule.written(job)
    jobs.next = {job: jobs.clock.now + jobs.schedule.seconds_left(job) for job in range(300)}
    jobs.run(120)
    assert jobs.most_in_a_second() <= WRITES_A_SECOND + 1
    assert len(jobs.each) == 300


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
    assert schedule._taken.bit_count() == 1


def test_jobs_whose_status_is_written_all_the_time_put_off_no_other() -> None:
    clock = Clock()
    schedule = ProgressSchedule(clock)
    for job in range(300):
        schedule.written(job)
    for _ in range(10_000):
        clock.now += 0.01
        schedule.written(0)
        assert schedule.seconds_left(0) < INTERVAL_SECONDS + 300 / WRITES_A_SECOND + 0.001
    assert schedule.seconds_left("new") <= 301 / WRITES_A_SECOND
    assert all(schedule.seconds_left(job) == 0.0 for job in range(1, 300))
