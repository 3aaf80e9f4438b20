"""A coordinator that is late blames nobody: what it has not read yet, and what nobody could show
while it was paused, is held against no member and no rank.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regroup_trainer.coordinator.core import (
    LONGEST_UNREAD_SECONDS,
    RETURN_TO_SAVE_SECONDS,
    Coordinator,
)
from regroup_trainer.coordinator.current_generation import CurrentGeneration, Failure
from regroup_trainer.coordinator.effects import ReserveNumber
from regroup_trainer.coordinator.transitions import AGREE_SECONDS
from regroup_trainer.protocol.agent_messages import HeldSnapshots
from regroup_trainer.protocol.desired import LastKnown, Lost
from regroup_trainer.protocol.generation import Decision, GenerationNumber
from tests.support.coordinator_simulation import (
    STUCK_IN_COLLECTIVE,
    Job,
    make_desired,
    start_job,
)
from tests.support.large_job import LargeJob, uid

FIRST = GenerationNumber(1, 1)

# --- hellos that wait unread ----------------------------------------------------------------------


def succeed(job: Job) -> None:
    """A successor starts, and is too slow to serve any connection for now."""
    job.start_coordinator(term=2)
    job.read_until = job.now


def test_a_successor_waits_for_a_member_whose_connection_it_has_not_served() -> None:
    job, agents = start_job(steps=10_000)
    agents[2].reachable = False  # so it is to the coordinator
    succeed(job)
    job.wait(9.0)
    early = job.core.state.current
    assert early is None
    job.read_until, agents[2].reachable = None, True
    job.wait(1.0)
    current = job.core.state.current
    assert current is not None
    assert current.alive
    assert current.number == FIRST


def test_a_successor_loses_a_member_once_all_that_has_arrived_is_read() -> None:
    job, agents = start_job(steps=10_000)
    agents[2].alive = False
    succeed(job)
    job.wait(3.0)
    job.read_until = job.now - 0.1
    job.wait(1.0)
    assert job.indices == [0, 1]


def test_a_successor_forms_no_generation_without_members_that_it_has_not_served() -> None:
    """They would lose what they have trained. Two others were replaced meanwhile."""
    sizes = {"replicas": 4, "max_replicas": 4, "start_grace_seconds": 0.1}
    job, agents = start_job(workers=4, steps=10_000, **sizes)
    for agent in agents[:2]:
        agent.alive = False
    for agent in agents[2:]:
        agent.reachable = False
    step = job.step
    succeed(job)
    for index in range(2):
        job.add_agent(index)
    job.wait(5.0)
    assert job.core.state.current is None
    job.read_until = None
    for agent in agents[2:]:
        agent.reachable = True
    job.wait(5.0)
    assert job.indices == [2, 3, 0, 1]
    assert job.record.restored_from == "Peers"
    assert job.step > step


def test_a_job_to_suspend_is_not_suspended_before_the_hellos_of_its_members_are_read() -> None:
    job, agents = start_job(steps=10_000)
    job.update_desired(suspend=True)
    for agent in agents:
        agent.reachable = False
    succeed(job)
    job.wait(5.0)
    early = job.outcome
    assert early is None
    job.read_until = None
    for agent in agents:
        agent.reachable = True
    job.wait(1.0)
    assert job.outcome is not None
    assert job.saved_step == agents[0].step


def test_a_second_agent_takes_no_place_while_heartbeats_of_the_first_wait_unread() -> None:
    job, agents = start_job(steps=10_000)
    job.read_until = job.now
    agents[2].reachable = False  # so it is to the coordinator
    job.wait(2.0)
    second = job.add_agent(2)
    assert job.core.state.members.staying[2].name == agents[2].name
    job.read_until = None
    job.wait(1.0)
    assert job.core.state.members.staying[2].name == second.name


# --- reports that wait unread ---------------------------------------------------------------------


def test_ranks_whose_reports_wait_unread_do_not_hang() -> None:
    job, agents = start_job(steps=10_000, progress_timeout_seconds=3)
    job.wait(2.0)
    current = job.core.state.current
    assert current is not None
    job.reported_until = job.now
    agents[1].stuck_in = STUCK_IN_COLLECTIVE  # so it looks
    job.wait(LONGEST_UNREAD_SECONDS - 1.0)
    assert (current.diagnosed_at, current.failure) == (None, None)
    job.reported_until, agents[1].stuck_in = None, None
    job.wait(1.0)
    assert (current.diagnosed_at, current.failure) == (None, None)


def end_once_all_is_read(job: Job, current: CurrentGeneration) -> Failure:
    """From now on reports wait unread for nearly as long as that counts, and then no more. Why the
    generation ends, which it does only then.
    """
    job.reported_until = job.now
    job.wait(LONGEST_UNREAD_SECONDS - 1.0)
    early = current.failure
    assert early is None
    job.reported_until = None
    job.wait(0.1)
    assert current.failure is not None
    return current.failure


def test_stacks_that_wait_unread_are_waited_for() -> None:
    job, agents = start_job(steps=10_000, progress_timeout_seconds=3)
    job.wait(2.0)
    agents[1].stuck_in = STUCK_IN_COLLECTIVE
    for agent in agents:
        agent.answers = False
    current = job.core.state.current
    assert current is not None
    while current.diagnosed_at is None:
        job.wait(0.1)
    assert end_once_all_is_read(job, current).cause == "hang"


def test_ranks_whose_reports_wait_unread_are_not_ended_by_force() -> None:
    job, agents = start_job(steps=10_000)
    for agent in agents:
        agent.ranks_run = False  # so it looks
    job.ask_to_leave(agents[2])
    current = job.core.state.current
    assert current is not None
    job.wait(AGREE_SECONDS - 1.0)
    end_once_all_is_read(job, current)


def test_the_end_of_a_rank_that_waits_unread_is_the_cause_all_the_same() -> None:
    """Where ranks cannot keep their state, nothing else holds up the verdict on their network."""
    job, agents = start_job(strategy="fsdp", steps=10_000)
    job.reported_until = job.now
    current = job.core.state.current
    assert current is not None
    agents[0].ranks_run = False
    for agent in agents[1:]:
        job.rank_ends(agent, "peer", 75)
    job.wait(5.0)
    assert current.failure is not None
    assert current.failure.provisional
    agents[0].ranks_run = True
    job.rank_ends(agents[0], "error", 1, "RuntimeError: out of luck")
    job.reported_until = None
    job.wait(0.1)
    assert current.failure.cause == "application"
    assert "out of luck" in current.failure.message


# --- a pause --------------------------------------------------------------------------------------

Input = Callable[[Coordinator, float], object]
INPUTS: dict[str, Input] = {
    "tick": lambda core, now: core.tick(now),
    "message": lambda core, now: core.on_message(HeldSnapshots(snapshots=()), uid(0), now),
    "heartbeat": lambda core, now: (core.on_heartbeat(uid(0), now), core.tick(now)),
    "closed": lambda core, now: core.on_closed(uid(0), now),
    "desired": lambda core, now: core.update_desired(core.state.desired, now),
    "lost": lambda core, now: core.on_lost(Lost(members=("nobody",), reason="gone"), now),
    "reserved": lambda core, now: core.on_reserved(GenerationNumber(2, 1), None, now),
    "refused": lambda core, now: core.on_reservation_failed("it is full", now),
    "unanswered": lambda core, now: core.on_reservation_unanswered("it is slow", now),
    "former": lambda core, now: core.on_former(FIRST, 0, now),
    "checkpoint": lambda core, now: core.on_checkpoint_looked_for("", True, now),
}
"""Whichever comes first after a pause."""
each_input = pytest.mark.parametrize("arrives", INPUTS.values(), ids=INPUTS)


def training() -> LargeJob:
    """A job whose ranks make steps, a moment after a tick."""
    job = LargeJob(4)
    for number in range(4):
        job.hello(number)
    for number, restored in job.restored():
        job.send(number, restored)
    for send in job.progress():
        send()
    job.tick()
    return job


@each_input
def test_a_successor_that_was_paused_loses_nobody_who_comes_late(arrives: Input) -> None:
    job = training()
    record = job.record
    job.start_coordinator(2)
    job.tick()
    for number in range(3):
        job.hello(number, record)
    job.now += 12.0
    arrives(job.core, job.now)
    assert job.core.state.current is None


@each_input
def test_no_rank_hangs_whose_reports_a_pause_holds_up(arrives: Input) -> None:
    job = training()
    job.now += 200.0
    arrives(job.core, job.now)
    current = job.core.state.current
    assert current is not None
    assert (current.diagnosed_at, current.failure) == (None, None)


@each_input
def test_a_pause_ends_no_rank_by_force_that_was_asked_to_agree(arrives: Input) -> None:
    job = training()
    patient = {"revision": 2, "progress_timeout_seconds": 600}
    job.core.update_desired(job.desired().model_copy(update=patient), job.now)
    begun = job.now
    while job.now < begun + AGREE_SECONDS + 10.0:  # a step may take so long
        job.now += 0.4
        for number in range(4):
            job.core.on_heartbeat(uid(number), job.now)
        job.tick()
    job.leave(3)
    job.tick()
    current = job.core.state.current
    assert current is not None
    assert current.decision == Decision.LEAVE
    job.now += 100.0
    arrives(job.core, job.now)
    assert current.failure is None


def test_a_pause_takes_no_time_from_workers_that_come_back_to_save() -> None:
    trained = LastKnown(step=10, time=1_000_000.0, world_size=3)
    job = Job(make_desired(last_known=trained), term=2)
    job.wait(1.0)
    job.pause_coordinator(RETURN_TO_SAVE_SECONDS)
    job.update_desired(suspend=True)
    job.wait(RETURN_TO_SAVE_SECONDS - 5.0)
    assert job.outcome is None


def test_after_a_pause_the_volume_is_asked_for_a_successor_before_a_generation_begins() -> None:
    job = training()
    job.now += 12.0
    effects = job.core.update_desired(job.desired(), job.now)
    assert [effect for effect in effects if isinstance(effect, ReserveNumber)]
