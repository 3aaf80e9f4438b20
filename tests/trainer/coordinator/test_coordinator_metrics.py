"""The metrics of a coordinator, in virtual time."""

from __future__ import annotations

import pytest

from regroup_trainer.coordinator.accounting import DETECTION_BUCKETS
from regroup_trainer.coordinator.coordinator_metrics import make_registry
from regroup_trainer.protocol.rank_messages import Parked
from tests.support.coordinator_simulation import Job, retained_of, start_job

LABELS = {"namespace": "default", "trainingjob": "gpt"}
UNREPORTED = 0.5
"""Seconds that rank 0 may have spent since its last report, which agents send with a heartbeat."""


def value(job: Job, name: str, **labels: str) -> float | None:
    return make_registry(job.core.state).get_sample_value(name, {**LABELS, **labels})


def test_before_the_first_generation_there_are_no_ranks() -> None:
    job = Job()
    assert value(job, "trainingjob_generation") == 0
    assert value(job, "trainingjob_world_size") == 0


def test_the_generation_and_its_ranks_are_those_that_train() -> None:
    job, agents = start_job()
    assert value(job, "trainingjob_generation") == job.record.number.n == 1
    assert value(job, "trainingjob_world_size") == 3
    job.crash(agents[1])
    job.wait(3.0)
    assert value(job, "trainingjob_generation") == job.record.number.n == 2
    assert value(job, "trainingjob_world_size") == 2


def test_a_generation_that_has_ended_keeps_its_number_and_has_no_ranks() -> None:
    job, agents = start_job(workers=2, replicas=2)
    job.crash(agents[0])
    job.wait(3.0)
    assert value(job, "trainingjob_generation") == 1
    assert value(job, "trainingjob_world_size") == 0


def test_the_time_of_the_job_is_counted_by_phase() -> None:
    job, _ = start_job()
    job.wait(5.0)
    spent = value(job, "trainingjob_time_seconds_total", phase="step")
    assert spent is not None
    assert spent > 0
    assert value(job, "trainingjob_time_seconds_total", phase="checkpoint_restore") is not None
    assert value(job, "trainingjob_lost_work_seconds_total") == 0


def gpu_seconds(job: Job) -> dict[str, float]:
    """The seconds of all GPUs by use."""
    counted = {
        use: value(job, "trainingjob_gpu_seconds_total", use=use)
        for use in ("useful", "lost", "waiting")
    }
    return {use: seconds for use, seconds in counted.items() if seconds is not None}


def test_the_time_of_all_gpus_is_counted_by_use() -> None:
    job, agents = start_job(steps=10_000)
    job.wait(5.0)
    before = gpu_seconds(job)
    assert before["useful"] > 0
    assert before["lost"] == 0
    job.cut_off(agents[1])
    job.wait(20.0)
    after = gpu_seconds(job)
    assert after["waiting"] > before["waiting"]
    assert after["useful"] > before["useful"]


@pytest.mark.parametrize("age", [0.0, 0.5, 3.0, 10.0])
def test_a_successor_counts_the_time_of_all_gpus_on_from_an_account_of_any_age(age: float) -> None:
    """It begins with what the status has, which is older than what its predecessor has counted:
    that time is in no account. From then on nothing is missing, or counted twice, or taken back.
    """
    job, agents = start_job(steps=100_000)
    job.wait(5.0)
    seed = job.core.state.account.ledger()
    job.wait(age)
    predecessor = gpu_seconds(job)
    job.desired = job.desired.model_copy(update={"seed": seed})
    job.start_coordinator(term=2)
    known, began = gpu_seconds(job), job.now
    assert known == seed.gpu_seconds, "it knows no more yet"
    for _ in range(20):
        job.wait(0.5)
        now = gpu_seconds(job)
        assert all(now[use] >= known[use] for use in known), "a counter never falls"
        known = now
    counted = sum(known.values()) - sum(seed.gpu_seconds.values())
    assert counted == pytest.approx(len(agents) * (job.now - began), abs=len(agents) * UNREPORTED)
    lacks = sum(predecessor.values()) - sum(seed.gpu_seconds.values())
    assert lacks == pytest.approx(len(agents) * age, abs=len(agents) * UNREPORTED)


def test_losses_are_counted_by_cause_with_the_time_to_their_detection() -> None:
    job, agents = start_job()
    for cause in ("infrastructure", "application", "hang"):  # `increase()` sees the first one
        assert value(job, "trainingjob_detection_seconds_count", cause=cause) == 0
    job.cut_off(agents[1])
    job.wait(3.0)
    assert value(job, "trainingjob_detection_seconds_count", cause="infrastructure") == 1
    within_one = value(
        job, "trainingjob_detection_seconds_bucket", cause="infrastructure", le="1.0"
    )
    within_three = value(
        job, "trainingjob_detection_seconds_bucket", cause="infrastructure", le="3.0"
    )
    assert (within_one, within_three) == (0, 1)


def detections(job: Job) -> tuple[float, float]:
    """How many losses of workers were detected, and the seconds that this took in all."""
    count = value(job, "trainingjob_detection_seconds_count", cause="infrastructure")
    seconds = value(job, "trainingjob_detection_seconds_sum", cause="infrastructure")
    assert count is not None
    assert seconds is not None
    return count, seconds


def test_a_loss_that_the_operator_reports_began_with_the_last_sign_of_life() -> None:
    job, agents = start_job()
    job.cut_off(agents[1])
    job.wait(1.0)
    job.report_lost(agents[1], "node NotReady")
    count, seconds = detections(job)
    assert count == 1
    assert 0.9 <= seconds <= 1.6  # the last heartbeat came up to half a second before
    assert job.core.state.recoveries.records()[-1].detect_seconds == pytest.approx(seconds)


def test_a_loss_that_a_peer_reports_began_with_the_end_of_the_connection() -> None:
    job, agents = start_job()
    job.cut_off(agents[1])
    job.disconnect(agents[1])
    job.wait(0.7)
    assert detections(job) == (0, 0)
    record = job.record
    parked = Parked(generation=record.number, rank=0, retained=retained_of(record, 0, job.step))
    job.send(agents[0], parked)
    count, seconds = detections(job)
    assert count == 1
    assert seconds == pytest.approx(0.7, abs=0.11)


@pytest.mark.parametrize("planned", ["drain", "resize", "suspension"])
def test_a_worker_that_is_to_go_is_no_loss(planned: str) -> None:
    job, agents = start_job(steps=10_000)
    if planned == "drain":
        job.ask_to_leave(agents[2])
    else:
        change = {"replicas": 2} if planned == "resize" else {"suspend": True}
        job.update_desired(**change)
    assert agents[2].name in job.core.state.members
    job.report_lost(agents[2], "Kubernetes reports that the pod has ended")
    job.wait(5.0)
    assert detections(job) == (0, 0)


def test_times_of_detection_take_the_same_room_however_many_there_are() -> None:
    times = Job().core.state.detections["infrastructure"]
    for loss in range(10_000):
        times.add(loss / 1000)
    assert len(times.counts) == len(DETECTION_BUCKETS) + 1
    assert sum(times.counts) == 10_000


def test_a_wait_between_generations_is_booked_while_it_lasts() -> None:
    """One worker of three is too few; it may wait for hours, and the job may end before another."""
    job, agents = start_job(steps=100_000)
    job.wait(5.0)
    for agent in agents[1:]:
        job.cut_off(agent)
    job.wait(20.0)

    def booked() -> tuple[float, float]:
        waiting = value(job, "trainingjob_gpu_seconds_total", use="waiting")
        idle = value(job, "trainingjob_time_seconds_total", phase="idle")
        return waiting or 0.0, idle or 0.0

    before = booked()
    job.wait(600.0)
    grown = [after - then for after, then in zip(booked(), before, strict=True)]
    assert grown == pytest.approx([600.0, 600.0], rel=0.02)
