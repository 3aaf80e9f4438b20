"""What a coordinator says where many workers are missing at once."""

from __future__ import annotations

import pytest

from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.journal import EVENTS_APART, GATHER_SECONDS
from regroup_trainer.protocol.desired import Lost
from regroup_trainer.protocol.job_status import CoordinatorStatus, JobEvent
from regroup_trainer.protocol.message import TEXT_LIMIT
from tests.support.large_job import LargeJob, uid

MANY = [10, 50, 500, 4000]


def formed(workers: int) -> LargeJob:
    """A job whose workers have begun their first generation."""
    job = LargeJob(workers)
    for number in range(workers):
        job.hello(number)
    return job


def training(workers: int) -> LargeJob:
    """A job of workers that train."""
    job = formed(workers)
    trains(job)
    return job


def trains(job: LargeJob) -> None:
    for number, report in job.restored():
        job.send(number, report)
    for send in job.progress():
        send()


def begin_without_them(job: LargeJob) -> None:
    """The next generation begins without who is lost, and trains."""
    for number, report in job.parked():
        job.send(number, report)
    job.now += 1.5  # nobody is waited for any longer
    pass_time(job)
    trains(job)


def pass_time(job: LargeJob) -> None:
    """All send their heartbeats, and the coordinator ticks."""
    for number in range(job.workers):
        job.core.on_heartbeat(uid(number), job.now)
    job.tick()


def lose(job: LargeJob, first: int, end: int, reason: str = "the node is gone") -> None:
    """The operator reports workers as lost."""
    lost = Lost(members=tuple(uid(number) for number in range(first, end)), reason=reason)
    job.do(job.core.on_lost(lost, job.now))


def shown(job: LargeJob) -> CoordinatorStatus:
    """The status, as the operator reads it."""
    return CoordinatorStatus.parse(make_status(job.core.state, 1).model_dump_json())


def losses(job: LargeJob) -> list[JobEvent]:
    return [event for event in shown(job).events if event.reason == "WorkerLost"]


@pytest.mark.parametrize("lost", MANY)
def test_workers_that_are_lost_at_once_are_one_event_and_a_status_names_a_few(lost: int) -> None:
    job = training(2 * lost)
    lose(job, lost, 2 * lost)
    first = f"gpt-w{lost}-1, gpt-w{lost + 1}-1, gpt-w{lost + 2}-1 and {lost - 3} more"
    (event,) = losses(job)
    assert event.message == (
        f"{lost} workers are lost: {first}; the first: worker gpt-w{lost}-1 on node-{lost} is "
        "lost: the node is gone"
    )
    begin_without_them(job)
    message = shown(job).message
    assert f"on {lost} workers of {2 * lost} wanted" in message
    assert f"{first} were lost: the node is gone" in message
    assert len(message) < 500


@pytest.mark.parametrize("missing", MANY[:3])
def test_a_status_names_a_few_of_the_workers_that_have_not_connected(missing: int) -> None:
    job = LargeJob(2 * missing)
    for number in range(missing):
        job.hello(number)
    job.now += job.core.state.desired.start_grace_seconds
    pass_time(job)
    trains(job)
    first = ", ".join(f"gpt-w{missing + n}" for n in range(3))
    assert f"{first} and {missing - 3} more have not connected yet" in shown(job).message


@pytest.mark.parametrize("late", MANY)
def test_a_successor_names_a_few_of_the_workers_that_it_waits_for(late: int) -> None:
    job = formed(2 * late)
    record = job.record
    job.start_coordinator(2)
    for number in range(late):
        job.hello(number, record)
    waiting = shown(job).waiting
    assert waiting is not None
    first = ", ".join(f"gpt-w{late + n}-1" for n in range(3))
    assert f"waiting for {first} and {late - 3} more to connect" in waiting.message


@pytest.mark.parametrize("absent", MANY[:3])
def test_a_job_that_waits_for_its_least_workers_names_a_few(absent: int) -> None:
    job = LargeJob(2 * absent)
    job.hello(0)
    waiting = shown(job).waiting
    assert waiting is not None
    assert f"gpt-w1, gpt-w2, gpt-w3; {2 * absent - 4} more are not here" in waiting.message


def test_a_few_workers_have_an_event_each() -> None:
    job = training(16)
    lose(job, 0, EVENTS_APART)
    assert [event.message for event in losses(job)] == [
        f"worker gpt-w{n}-1 on node-{n} is lost: the node is gone" for n in range(EVENTS_APART)
    ]


def test_losses_that_follow_each_other_soon_are_summed_up() -> None:
    job = training(64)
    for number in range(20):
        lose(job, number, number + 1)
        job.now += GATHER_SECONDS / 40
    assert len(losses(job)) == 1, "the first is shown at once"
    job.now += GATHER_SECONDS
    job.tick()
    assert [event.message[:20] for event in losses(job)[1:]] == ["19 workers are lost:"]


def test_a_long_reason_of_the_operator_does_not_hide_the_status() -> None:
    job = training(16)
    lose(job, 8, 12, "x" * TEXT_LIMIT)
    begin_without_them(job)
    status = shown(job)
    assert len(status.message) <= TEXT_LIMIT
    assert all(len(recovery.message) <= TEXT_LIMIT for recovery in status.recoveries)
