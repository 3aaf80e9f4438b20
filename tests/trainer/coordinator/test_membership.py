"""Signs of life that arrive one way only, and the deadlines that follow from them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.membership import (
    DELAY_COUNTS_SECONDS,
    Member,
    Members,
    expired,
)
from regroup_trainer.protocol.config import ParallelismConfig, TrainConfig, TrainingConfig
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import Progress
from tests.support.coordinator_simulation import TICK, Job, SimulatedAgent, make_desired
from tests.support.generations import make_hello

DESIRED = make_desired(heartbeat_milliseconds=500, timeout_milliseconds=2000)


def start() -> tuple[Job, list[SimulatedAgent]]:
    job = Job(make_desired(steps=10_000))
    agents = [job.add_agent(index) for index in range(3)]
    job.wait(1.0)
    return job, agents


def test_heartbeats_do_not_keep_a_member_that_no_order_can_reach() -> None:
    job, agents = start()
    agents[1].connects = False
    job.disconnect(agents[1])
    job.wait(1.9)
    assert job.record.number.n == 1, "it may come back within the timeout"
    job.wait(0.3)
    assert job.indices == [0, 2]
    assert (
        "its connection closed and no new one came"
        in job.core.state.recoveries.records()[-1].message
    )


def test_a_member_that_could_not_be_reached_is_fenced_when_it_comes_back() -> None:
    job, agents = start()
    agents[1].connects = False
    job.disconnect(agents[1])
    job.wait(3.0)
    assert agents[1].state.is_current(min(job.begun)), "it knows nothing of its loss"
    agents[1].connects = True
    job.wait(1.0)
    assert job.indices == [0, 2, 1]
    assert agents[1].state.record == job.record


def test_time_without_contact_counts_as_far_as_everything_that_arrived_is_known() -> None:
    job, agents = start()
    member = job.core.state.members[agents[1].name]
    agents[1].alive = False
    over = member.deadline(job.core.state.desired)
    job.wait(over - job.now - 0.1)
    job.core.tick(over + 0.1, read_until=over - 0.01)
    assert agents[1].name in job.core.state.members
    job.core.tick(over + 0.12, read_until=over)
    assert agents[1].name not in job.core.state.members


def test_what_arrives_over_the_connection_is_a_sign_of_life_when_no_heartbeat_does() -> None:
    job, agents = start()
    agents[1].heartbeats_arrive = False
    step = job.step
    job.wait(10.0)
    assert job.record.number.n == 1
    assert job.step > step + 50


def test_an_open_connection_over_which_nothing_comes_is_none() -> None:
    job, agents = start()
    agents[1].heartbeats_arrive = False
    job.hang(agents[1])
    job.wait(DESIRED.timeout_milliseconds / 1000 + 2 * TICK)
    assert job.indices == [0, 2]


times = st.floats(0.0, 100.0)


@settings(deadline=None)
@given(last_seen=times, unseen=st.floats(0.0, 10.0))
def test_a_connected_member_is_lost_after_the_timeout_and_not_before(
    last_seen: float, unseen: float
) -> None:
    member = Member(make_hello(0), last_seen=last_seen)
    assert (expired([member], DESIRED, last_seen + unseen) == [member]) == (
        last_seen + unseen >= last_seen + 2.0
    )


@settings(deadline=None)
@given(last_seen=times, on_closed=times)
def test_a_closed_member_has_no_more_than_the_timeout_whatever_else_is_received(
    last_seen: float, on_closed: float
) -> None:
    member = Member(make_hello(0), last_seen=last_seen, closed_at=on_closed)
    assert member.deadline(DESIRED) <= on_closed + 2.0
    if last_seen <= on_closed:
        assert member.deadline(DESIRED) == on_closed + 1.0


@settings(deadline=None)
@given(unseen=st.floats(0.0, 1.9), closed=st.none() | st.floats(0.0, 0.9), pause=st.floats(0.5, 60))
def test_nobody_is_lost_since_the_coordinator_itself_was_paused(
    unseen: float, closed: float | None, pause: float
) -> None:
    now = 100.0
    closed_at = None if closed is None else now - closed
    members = Members()
    members.add(Member(make_hello(0), last_seen=now - unseen, closed_at=closed_at))
    if closed_at is not None:
        members.on_closed(members["uid-0"], closed_at)
    if not members.expired(DESIRED, now):
        members.forgive(pause, now + pause)
        assert members.expired(DESIRED, now + pause) == []


@pytest.mark.parametrize(
    ("pause", "between", "bound"),
    [(1.0, 2.0, 5.0), (1.0, 1.0, 6.0), (3.0, 0.5, 16.0), (1.0, TICK, 9.0)],
)
def test_a_coordinator_that_is_paused_again_and_again_still_finds_a_dead_member(
    pause: float, between: float, bound: float
) -> None:
    job, agents = start()
    begun = job.now
    job.cut_off(agents[1])
    while agents[1].name in job.core.state.members:
        assert job.now - begun < bound
        job.wait(between)
        job.pause_coordinator(pause)
    job.wait(2.0)
    assert job.indices == [0, 2]


def test_a_connection_that_agents_gave_up_during_a_pause_is_no_evidence_of_a_loss() -> None:
    """A rank fails meanwhile, and its peers report that they lost one."""
    job, agents = start()
    job.pause_coordinator(5.0)
    for agent in agents:
        job.disconnect(agent)
    job.connect(agents[0])
    job.leave_generation(agents[0])
    assert len(job.core.state.members) == 3


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_connection_that_the_coordinator_closed_is_no_evidence_of_a_loss(is_alive: bool) -> None:
    """Its agent did not read, and a rank lost a peer. Without heartbeats that agent is the peer."""
    job, agents = start()
    agents[1].connects, agents[1].heartbeats_arrive = False, is_alive
    agents[1].connected = False
    job.core.on_closed(agents[1].name, job.now, here=True)
    job.leave_generation(agents[0])
    assert len(job.core.state.members) == 3
    agents[1].connects = is_alive
    job.wait(1.5)
    assert (agents[1].name in job.core.state.members) is is_alive


def test_no_rank_hangs_while_the_coordinator_is_paused() -> None:
    job = Job(make_desired(steps=10_000, progress_timeout_seconds=2))
    for index in range(3):
        job.add_agent(index)
    job.wait(2.0)
    job.pause_coordinator(5.0)
    job.wait(2.0)
    assert job.record.number.n == 1
    assert "HangDetected" not in {event.reason for event in job.core.state.journal.events()}


def test_a_successor_that_is_paused_still_waits_for_the_members_of_its_predecessor() -> None:
    job, agents = start()
    for agent in agents[1:]:
        agent.connects = agent.heartbeats_arrive = False
    job.start_coordinator(2)
    job.wait(0.2)
    job.pause_coordinator(5.0)
    for agent in agents[1:]:
        agent.connects = agent.heartbeats_arrive = True
    job.wait(1.0)
    assert_adopted(job, 3)


def test_of_each_kind_the_newest_report_before_an_adoption_is_kept() -> None:
    """Whatever an agent sends, and for how long the others are waited for."""
    job, agents = start()
    number, rank = job.record.number, agents[1].state.local_ranks()[0]
    for agent in (agents[0], agents[2]):
        agent.connects = agent.heartbeats_arrive = False
    job.start_coordinator(2)
    job.wait(0.2)
    report = Progress(generation=number, rank=rank, step=agents[1].step, time=job.now)
    for step in range(50):
        job.send(agents[1], report.model_copy(update={"step": report.step + step}))
    job.send(agents[1], report.model_copy(update={"rank": 2}))
    job.send(agents[1], report.model_copy(update={"generation": GenerationNumber(1, 9)}))
    (kept,) = job.core.state.members[agents[1].name].early.values()
    assert kept == report.model_copy(update={"step": report.step + 49})


def assert_adopted(job: Job, workers: int) -> None:
    """The generation of the predecessor goes on, with all its workers."""
    assert job.record.number.term == 1
    assert len(job.record.members) == workers
    assert job.core.state.current is not None
    assert job.core.state.current.alive


def returning(pause: float) -> Job:
    """A successor whose agents connect one after another, and of whom nothing arrives before."""
    job = Job(make_desired(steps=10_000, replicas=8, max_replicas=8))
    agents = [job.add_agent(index) for index in range(8)]
    job.wait(4.0)
    for agent in agents:
        agent.connects = agent.heartbeats_arrive = False
    job.start_coordinator(2)
    for agent in agents:
        agent.connects = agent.heartbeats_arrive = True
        job.wait(pause)
    job.wait(1.0)
    return job


def test_a_successor_that_is_slow_to_read_all_hellos_loses_nobody() -> None:
    assert_adopted(returning(pause=1.0), 8)


def test_members_that_do_not_come_back_are_not_waited_for_without_end() -> None:
    assert returning(pause=1.8).record.number.term == 2


def lost_without_contact_for(delay: float, seconds: float) -> bool:
    """Whether a member is lost that has sent nothing for so long after a heartbeat came late."""
    job, agents = start()
    agents[1].heartbeat_delay = delay
    job.wait(1.0)
    job.cut_off(agents[1])
    job.wait(seconds)
    return job.indices == [0, 2]


@pytest.mark.parametrize(
    ("delay", "kept", "lost"),
    [(0.0, 1.5, 2.2), (0.05, 1.5, 2.2), (0.5, 3.3, 4.2), (30.0, 5.3, 6.2)],
)
def test_a_member_on_an_overloaded_machine_gets_up_to_three_timeouts(
    delay: float, kept: float, lost: float
) -> None:
    assert not lost_without_contact_for(delay, kept)
    assert lost_without_contact_for(delay, lost)


def test_a_delay_that_was_reported_long_ago_does_not_count() -> None:
    job, agents = start()
    agents[1].heartbeat_delay = 1.5
    job.wait(1.0)
    agents[1].heartbeat_delay = 0.0
    job.wait(DELAY_COUNTS_SECONDS + 1.0)
    job.cut_off(agents[1])
    job.wait(2.2)
    assert job.indices == [0, 2]


def test_status_and_an_event_report_that_a_loss_would_be_noticed_late() -> None:
    job, agents = start()
    assert "late" not in make_status(job.core.state, 1).message
    agents[1].heartbeat_delay = 0.75
    job.wait(1.0)
    sentence = (
        "heartbeats of gpt-w1-2 come 0.8 s late because node node-1 is overloaded, so its loss "
        "would be noticed after 5.0 s"
    )
    status = make_status(job.core.state, 1)
    assert status.message.endswith(sentence)
    late = [event for event in status.events if event.reason == "HeartbeatsLate"]
    assert [event.message for event in late] == [sentence]


def test_members_that_were_dropped_too_early_return_with_their_state() -> None:
    """They hold a shard that nobody else has."""
    config = TrainConfig(
        training=TrainingConfig(steps=10_000, global_batch_size=8),
        parallelism=ParallelismConfig(strategy="hsdp", shard_group_size=2),
    )
    whole: dict[str, Any] = {
        "replicas": 4,
        "min_replicas": 4,
        "max_replicas": 4,
        "replica_group_size": 2,
    }
    job = Job(make_desired(train=config, **whole))
    agents = [job.add_agent(index) for index in range(4)]
    job.wait(1.0)
    quiet, step = (agents[1], agents[3]), job.step
    for agent in quiet:
        job.cut_off(agent)
    job.wait(3.0)
    assert make_status(job.core.state, 1).phase == "recovering"
    for agent in quiet:
        agent.reachable = True
        job.wait(0.5)
    recovery = job.core.state.recoveries.records()[-1]
    assert (recovery.restored_from, recovery.lost_steps) == ("Peers", 0)
    assert job.step > step


@pytest.mark.parametrize(("delay", "seconds"), [(0.0, 1.0), (0.5, 3.0), (30.0, 5.0)])
def test_ranks_on_an_overloaded_machine_get_longer_to_leave(delay: float, seconds: float) -> None:
    """A rank that is killed since it is late takes its state with it."""
    job, agents = start()
    agents[2].heartbeat_delay = delay
    job.wait(1.0)
    job.hang(agents[0])
    job.cut_off(agents[1])
    while agents[0].killed_at is None:
        job.wait(TICK)
    assert agents[0].killed_at - job.now == pytest.approx(seconds, abs=2 * TICK)
