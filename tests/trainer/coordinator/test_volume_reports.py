"""A volume that is away, as ranks and the coordinator itself find it: status, events, metric."""

from __future__ import annotations

import pytest

from regroup_trainer.coordinator.coordinator_metrics import make_registry
from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.journal import RARELY_SECONDS
from regroup_trainer.coordinator.reserved_numbers import LONGEST_RETRY_SECONDS, NUMBERS_AHEAD
from regroup_trainer.coordinator.transitions import AGREE_SECONDS
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.rank_messages import (
    Busy,
    CheckpointSaved,
    Progress,
    VolumeProblem,
)
from tests.support.coordinator_simulation import Job, SimulatedAgent, start_job

PROBLEM = VolumeProblem(
    path="/volume/gpt/history/1-1.jsonl",
    error="Input/output error",
    since=90.0,
    at_risk="5 steps wait in memory.",
)


def status(job: Job) -> CoordinatorStatus:
    return make_status(job.core.state, 1)


def events(job: Job) -> list[str]:
    """The reasons of the events that name the volume."""
    return [event.reason for event in status(job).events if event.reason.startswith("Volume")]


def metric(job: Job) -> float | None:
    labels = {"namespace": "default", "trainingjob": "gpt"}
    registry = make_registry(job.core.state)
    return registry.get_sample_value("trainingjob_volume_unavailable", labels)


def report_progress(job: Job, agent: SimulatedAgent, volume: VolumeProblem | None) -> None:
    """Rank 0 reports a step."""
    step = agent.step + 1
    number = job.record.number
    job.send(agent, Progress(generation=number, rank=0, step=step, time=job.now, volume=volume))


def stop_reporting(agents: list[SimulatedAgent]) -> None:
    for agent in agents:
        agent.ranks_run = False


def test_a_history_that_waits_is_shown_while_training_goes_on() -> None:
    job, agents = start_job()
    stop_reporting(agents)
    assert metric(job) == 0
    report_progress(job, agents[0], PROBLEM)
    assert status(job).volume == PROBLEM
    assert status(job).waiting is None
    assert status(job).message.endswith(
        "; the volume is unavailable: /volume/gpt/history/1-1.jsonl: Input/output error"
    )
    assert metric(job) == 1
    report_progress(job, agents[0], None)
    assert status(job).volume is None
    assert metric(job) == 0
    assert events(job) == ["VolumeUnavailable", "VolumeAvailable"]
    (event, _) = (event for event in status(job).events if event.reason.startswith("Volume"))
    assert event.type == "Warning"
    assert event.message == f"{PROBLEM.path}: {PROBLEM.error}. {PROBLEM.at_risk}"


def test_an_outage_soon_after_another_is_announced_once_that_is_due() -> None:
    job, agents = start_job(progress_timeout_seconds=3600)
    stop_reporting(agents)
    for volume in (PROBLEM, None, PROBLEM):
        report_progress(job, agents[0], volume)
        job.wait(1.0)
    assert events(job) == ["VolumeUnavailable", "VolumeAvailable"]
    job.wait(RARELY_SECONDS)
    assert events(job) == ["VolumeUnavailable", "VolumeAvailable", "VolumeUnavailable"]
    report_progress(job, agents[0], None)
    job.wait(1.0)
    assert events(job)[3:] == ["VolumeAvailable"]


def test_the_end_of_an_outage_soon_after_that_of_another_is_announced_once_that_is_due() -> None:
    job, agents = start_job(progress_timeout_seconds=3600)
    stop_reporting(agents)
    report_progress(job, agents[0], PROBLEM)
    job.wait(RARELY_SECONDS - 5.0)
    report_progress(job, agents[0], None)
    job.wait(6.0)
    report_progress(job, agents[0], PROBLEM)
    report_progress(job, agents[0], None)
    first = ["VolumeUnavailable", "VolumeAvailable", "VolumeUnavailable"]
    assert events(job) == first
    job.wait(RARELY_SECONDS)
    assert events(job) == [*first, "VolumeAvailable"]


def test_a_blip_that_has_passed_once_its_event_is_due_has_none() -> None:
    job, agents = start_job(progress_timeout_seconds=3600)
    stop_reporting(agents)
    for volume in (PROBLEM, None, PROBLEM, None):
        report_progress(job, agents[0], volume)
        job.wait(1.0)
    job.wait(2 * RARELY_SECONDS)
    assert events(job) == ["VolumeUnavailable", "VolumeAvailable"]


def test_a_generation_that_waits_for_its_volume_is_no_hang_and_says_what_it_waits_for() -> None:
    job = Job()
    agents = [job.add_agent(index) for index in range(3)]
    stop_reporting(agents)
    number = job.record.number
    waits = Busy(generation=number, rank=0, doing="waiting for the volume", step=0, volume=PROBLEM)
    for _ in range(70):
        job.send(agents[0], waits)
        job.wait(10.0)
    assert job.record.number == number
    waiting = status(job).waiting
    assert waiting is not None
    assert waiting.reason == "VolumeUnavailable"
    assert waiting.message.startswith(f"generation {number} waits for the volume: /volume/gpt")
    assert events(job) == ["VolumeUnavailable"]


@pytest.mark.parametrize("has_state", [False, True])
def test_a_planned_end_waits_for_a_volume_only_where_a_state_could_be_lost(has_state: bool) -> None:
    job = Job()
    agents = [job.add_agent(index) for index in range(3)]
    stop_reporting(agents)
    number, current = job.record.number, job.core.state.current
    assert current is not None
    if not has_state:
        current.restored.clear()
    waits = Busy(generation=number, rank=0, doing="waiting for the volume", step=0, volume=PROBLEM)
    job.update_desired(suspend=True)
    for _ in range(int(AGREE_SECONDS) + 10):
        job.send(agents[0], waits)
        job.wait(1.0)
    assert current.alive == has_state


def refuse_the_save(job: Job, agents: list[SimulatedAgent], seconds: int) -> None:
    """The ranks are to end their generation, and repeat a save that the volume refuses."""
    stop_reporting(agents)
    record = agents[0].state.record
    assert record is not None
    waits = Busy(
        generation=record.number,
        rank=0,
        doing="waiting for the volume",
        step=agents[0].step,
        volume=PROBLEM,
    )
    for _ in range(seconds):
        job.send(agents[0], waits)
        job.wait(1.0)


def take_the_save(job: Job, agents: list[SimulatedAgent]) -> None:
    """The volume has room again."""
    saved = CheckpointSaved(
        generation=job.record.number,
        rank=0,
        step=agents[0].step,
        path="/volume/gpt/checkpoints/step-9",
        size_bytes=1,
        seconds=1.0,
        blocking_seconds=1.0,
        time=1_000_000.0 + job.now,
    )
    job.send(agents[0], saved)
    for agent in agents:
        agent.ranks_run = True
    job.wait(1.0)


def test_a_job_that_is_to_be_suspended_waits_for_its_volume_and_says_what_is_at_risk() -> None:
    job, agents = start_job(steps=1_000_000)
    job.update_desired(suspend=True)
    refuse_the_save(job, agents, int(AGREE_SECONDS) + 10)
    number, waiting = job.record.number, status(job).waiting
    assert waiting is not None
    assert waiting.reason == "VolumeUnavailable"
    assert waiting.message == status(job).message
    assert waiting.message == (
        f"generation {number} waits for the volume: {PROBLEM.sentence} Then it ends: the job is to "
        "be suspended"
    )
    take_the_save(job, agents)
    assert status(job).phase == "suspended"
    assert job.saved_step == agents[0].step
    assert status(job).volume is None


@pytest.mark.parametrize("term", [1, 2])
def test_a_coordinator_that_starts_while_ranks_save_again_waits_as_well(term: int) -> None:
    """In the same pod, or in another one."""
    job, agents = start_job(steps=1_000_000)
    job.update_desired(checkpoint=CheckpointPolicy(keep_last=7))
    refuse_the_save(job, agents, 10)
    number = job.record.number
    job.start_coordinator(term)
    refuse_the_save(job, agents, int(AGREE_SECONDS) + 10)
    waiting = status(job).waiting
    assert job.record.number == number
    assert waiting is not None
    assert waiting.reason == "VolumeUnavailable"
    take_the_save(job, agents)
    assert job.record.number > number
    assert job.record.desired.checkpoint.keep_last == 7
    assert status(job).ledger.lost_steps == 0


@pytest.mark.parametrize("fewest", [1, 3])
def test_ranks_that_lose_a_peer_before_they_are_suspended_save_in_the_next_generation(
    fewest: int,
) -> None:
    """Its number was reserved ahead, so that a volume that is still full does not stop it. It
    trains no step, so it may be smaller than one that does.
    """
    job, agents = start_job(steps=1_000_000)
    job.update_desired(min_replicas=fewest)
    job.wait(1.0)
    job.save_every = 1_000_000
    job.update_desired(suspend=True)
    refuse_the_save(job, agents, 5)
    step, number = agents[0].step, job.record.number
    for agent in agents:
        agent.ranks_run = True
    if fewest == 1:
        job.fail_rank(agents[2])
    else:
        job.crash(agents[2])
    job.wait(8.0)
    assert job.record.number > number
    assert status(job).phase == "suspended"
    assert job.saved_step >= step > 0


def test_a_job_trains_on_while_no_further_number_can_be_reserved() -> None:
    job, _ = start_job()
    job.core.on_reservation_failed("No space left on device (/volume/gpt)", job.now)
    volume = status(job).volume
    assert volume is not None
    assert "No space left on device" in volume.error
    assert volume.at_risk.startswith("8 more generations can begin")
    assert status(job).waiting is None
    job.wait(1.0)
    first = job.core.state.volume.for_numbers
    job.core.on_reservation_failed("No space left on device (/volume/gpt)", job.now)
    assert first is not None
    assert status(job).volume == first  # since the first failure in a row


def test_the_reserve_serves_recoveries_on_a_full_volume_and_then_states_wait_for_it() -> None:
    job, agents = start_job(max_restarts=0, steps=1_000_000)
    job.volume_refuses = "No space left on device"
    generations = []
    while status(job).waiting is None:
        generations.append(job.record.number.n)
        job.crash(agents.pop())
        job.wait(3.0)
        agents.append(job.add_agent(2))
        job.wait(3.0)
    assert len(generations) > NUMBERS_AHEAD / 2
    waiting = status(job).waiting
    assert waiting is not None
    assert waiting.reason == "VolumeUnavailable"
    assert job.record.number.n == NUMBERS_AHEAD + 1
    job.wait(600.0)
    assert sum(agent.is_parked for agent in agents) == 2
    job.volume_refuses = ""
    job.wait(LONGEST_RETRY_SECONDS + 3.0)
    assert status(job).phase == "running"
    assert status(job).waiting is None
    assert {recovery.restored_from for recovery in status(job).recoveries} == {"Peers"}
    assert sum(recovery.lost_steps or 0 for recovery in status(job).recoveries) == 0
