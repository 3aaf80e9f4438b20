"""Recovery from peers in the coordinator: whom it aborts, whom it waits for, what it restores."""

from __future__ import annotations

import pytest

from regroup_trainer.coordinator.core import LONGEST_UNREAD_SECONDS
from regroup_trainer.coordinator.current_generation import LastCommit
from regroup_trainer.coordinator.generation_end import (
    ABORT_SECONDS,
    KILL_SECONDS,
    LAST_COPY_SECONDS,
    abort_seconds,
)
from regroup_trainer.protocol.agent_messages import HeldSnapshots, RankExit
from regroup_trainer.protocol.rank_messages import Parked, Retained
from tests.support.coordinator_simulation import Job, SimulatedAgent, make_desired


def start(workers: int = 3, **desired: object) -> tuple[Job, list[SimulatedAgent]]:
    """A job whose workers have trained for more than a second, and saved step 10."""
    job = Job(make_desired(**desired))
    agents = [job.add_agent(index) for index in range(workers)]
    while job.step <= 12:
        job.wait(0.1)
    return job, agents


def last_recovery(job: Job) -> tuple[str, int | None]:
    """Where the last recovery restored the state from, and its lost steps."""
    recovery = job.core.state.recoveries.records()[-1]
    return recovery.restored_from, recovery.lost_steps


def test_a_lost_worker_costs_no_step_where_others_hold_the_state() -> None:
    job, agents = start()
    job.crash(agents[1])
    job.wait(0.5)
    assert job.indices == [0, 2]
    assert last_recovery(job) == ("Peers", 0)


def test_a_lost_worker_costs_the_steps_since_the_checkpoint_where_each_holds_its_own_part() -> None:
    job, agents = start(strategy="fsdp")
    at = job.step
    job.crash(agents[1])
    job.wait(0.5)
    assert last_recovery(job) == ("Checkpoint", at - 10)


def test_ranks_that_wait_for_an_unresponsive_peer_are_aborted_as_soon_as_it_is_lost() -> None:
    job, agents = start()
    job.cut_off(agents[0])
    job.wait(2.3)
    assert job.indices == [1, 2]
    assert last_recovery(job) == ("Peers", 0)


def test_a_rank_that_cannot_leave_is_forked_again_and_restored_from_its_peers() -> None:
    job, agents = start()
    job.hang(agents[2])
    job.crash(agents[1])
    job.wait(0.5)
    assert job.indices == [0, 2]
    assert last_recovery(job) == ("Peers", 0)


def unresponsive_ranks_are_waited_for(
    job: Job, agents: list[SimulatedAgent], *, only_its_rank: bool = False
) -> float:
    """Seconds from the order to leave, after worker 1 or its rank is lost, to the next generation.
    Its peers neither park nor end.
    """
    for agent in agents:
        agent.ranks_run = agent is agents[1] and only_its_rank
    if only_its_rank:
        job.rank_ends(agents[1], "error", 1)
    else:
        job.crash(agents[1])
    current, asked, until = job.core.state.current, job.now, job.now + 60.0
    assert current is not None
    while job.record.number.n == 1:
        asked = asked if current.leave_order is not None else job.now
        assert job.now < until
        job.wait(0.1)
    return job.now - asked


def test_a_rank_with_the_last_copy_of_the_state_has_more_time_to_leave() -> None:
    job, agents = start(workers=2, replicas=2, min_replicas=1)
    seconds = LAST_COPY_SECONDS + KILL_SECONDS
    assert unresponsive_ranks_are_waited_for(job, agents) == pytest.approx(seconds, abs=0.2)
    job, agents = start(workers=2, replicas=2, min_replicas=1)
    waited = unresponsive_ranks_are_waited_for(job, agents, only_its_rank=True)
    assert waited == pytest.approx(seconds, abs=0.2)
    job, agents = start_groups()
    assert unresponsive_ranks_are_waited_for(job, agents) == pytest.approx(seconds, abs=0.2)
    job, agents = start()
    seconds = ABORT_SECONDS + KILL_SECONDS
    assert unresponsive_ranks_are_waited_for(job, agents) == pytest.approx(seconds, abs=0.2)
    job, agents = start(workers=2, replicas=2, min_replicas=1, strategy="fsdp")
    assert unresponsive_ranks_are_waited_for(job, agents) < 1.0, "each holds its own part alone"


def test_a_rank_that_reports_nothing_is_waited_for_only_for_a_moment() -> None:
    job, agents = start()
    agents[2].ranks_run = False  # it neither parks nor ends
    job.crash(agents[1])
    job.wait(1.0)
    assert job.record.number.n == 1
    assert job.core.state.waiting is not None
    message = job.core.state.waiting.message
    assert "waiting for rank 2 on gpt-w2-3 (node node-2) to leave generation 1.1: its" in message
    job.wait(1.0)
    assert job.indices == [0, 2]
    assert last_recovery(job) == ("Peers", 0)


def test_a_worker_that_connects_again_lengthens_the_wait_only_for_a_rank_of_its_own() -> None:
    job, agents = start()
    agents[2].ranks_run = False  # it neither parks nor ends
    job.crash(agents[1])
    job.wait(0.5)
    current = job.core.state.current
    assert current is not None
    until = current.leave_until
    for agent, lengthens in ((agents[0], False), (agents[2], True)):
        job.disconnect(agent)
        job.wait(0.1)
        assert agent.connected
        assert (current.leave_until > until) == lengthens
    assert current.leave_until == pytest.approx(job.now + ABORT_SECONDS, abs=0.2)
    assert job.record.number.n == 1


def leaving_alone() -> tuple[Job, SimulatedAgent, float]:
    """A job of which one rank has the last copy of the state, and its agent. What that rank
    reports does not arrive. The next tick comes just before its time to leave is over.
    """
    job, (agent, other) = start(workers=2, replicas=2, min_replicas=1)
    agent.ranks_run = False
    job.crash(other)
    current, until = job.core.state.current, job.now + 60.0
    assert current is not None
    while current.leave_order is None:
        assert job.now < until
        job.wait(0.1)
    over = current.leave_until + KILL_SECONDS
    job.wait(over - job.now - 0.1)
    assert job.record.number.n == 1
    agent.ranks_run = True
    return job, agent, over


def test_a_report_that_is_read_late_saves_the_state_of_its_rank() -> None:
    job, agent, over = leaving_alone()
    job.now = over + 0.2
    job.core.tick(job.now, reported_until=over - 0.01)
    assert job.record.number.n == 1, "it may have reported meanwhile"
    job.leave_generation(agent)
    job.wait(0.1)
    assert last_recovery(job) == ("Peers", 0)


def test_a_message_that_is_read_before_the_report_costs_no_state() -> None:
    job, agent, over = leaving_alone()
    job.now = over + 0.2
    job.send(agent, HeldSnapshots(snapshots=()))
    assert job.record.number.n == 1
    job.leave_generation(agent)
    job.wait(0.1)
    assert last_recovery(job) == ("Peers", 0)


def test_a_coordinator_that_cannot_keep_up_waits_for_reports_for_a_while_only() -> None:
    job, agent, over = leaving_alone()
    while job.record.number.n == 1:
        job.now += 0.1
        assert job.now < over + LONGEST_UNREAD_SECONDS + 1.0
        job.core.on_heartbeat(agent.name, job.now)
        job.core.tick(job.now, reported_until=over - 0.01)
    assert job.now - over == pytest.approx(LONGEST_UNREAD_SECONDS, abs=0.2)


def test_a_joiner_costs_neither_a_save_nor_a_step() -> None:
    job, _ = start(workers=2)
    job.wait(3.0)
    saved, at = job.saved_step, job.step
    job.save_every = 1000
    job.add_agent(2)
    job.wait(1.0)
    assert job.indices == [0, 1, 2]
    assert job.resumed[job.record.number] >= at
    assert job.saved_step == saved
    assert last_recovery(job) == ("Peers", 0)


def test_a_worker_that_leaves_costs_neither_a_save_nor_a_step() -> None:
    job, agents = start()
    job.save_every = 1000
    saved = job.saved_step
    job.ask_to_leave(agents[0])
    job.wait(1.0)
    assert job.indices == [1, 2]
    assert job.saved_step == saved
    assert last_recovery(job) == ("Peers", 0)


def start_groups() -> tuple[Job, list[SimulatedAgent]]:
    """Four workers, of which each two in a row share a copy of the state."""
    job, agents = start(4, strategy="hsdp", replica_group_size=2, replicas=4, min_replicas=2)
    job.save_every = 1000
    return job, agents


def test_a_worker_that_leaves_with_the_only_copy_of_its_part_costs_a_save_and_no_step() -> None:
    job, agents = start_groups()
    job.ask_to_leave(agents[2])
    job.wait(1.0)
    assert (job.indices, last_recovery(job)) == ([0, 3], ("Peers", 0))
    at, saved = job.step, job.saved_step
    job.ask_to_leave(agents[3])
    job.wait(1.0)
    assert job.indices == [0, 1]
    assert last_recovery(job) == ("Checkpoint", 0)
    assert job.saved_step > saved
    assert job.resumed[job.record.number] >= at
    assert agents[3].exit_code == 0


def test_workers_that_leave_while_others_hold_their_parts_cost_neither_a_save_nor_a_step() -> None:
    job, agents = start_groups()
    saved = job.saved_step
    job.ask_to_leave(agents[1])
    job.ask_to_leave(agents[2])
    job.wait(1.0)
    assert (job.indices, job.saved_step) == ([0, 3], saved)
    assert last_recovery(job) == ("Peers", 0)


def test_the_last_holder_of_the_state_saves_it_before_it_leaves() -> None:
    job, agents = start(workers=2, replicas=2, min_replicas=1)
    job.save_every, at = 1000, job.step
    job.ask_to_leave(agents[1])
    job.crash(agents[0])
    job.wait(1.0)
    assert job.saved_step >= at
    assert agents[1].exit_code == 0


def test_the_last_holder_of_the_state_waits_for_the_least_workers_to_hand_it_over() -> None:
    job, agents = start(workers=2, replicas=2, min_replicas=2)
    job.save_every, at = 1000, job.step
    job.ask_to_leave(agents[1])
    job.crash(agents[0])
    job.wait(1.0)
    assert agents[1].alive
    assert job.core.state.waiting is not None
    assert "gpt-w1-2 keeps the only live copy of the state" in job.core.state.waiting.message
    job.add_agent(1)  # its own replacement, which must not be in a generation beside it
    job.add_agent(0)
    job.wait(5.0)
    records = [record for number, record in job.begun.items() if number.n > 1]
    assert all(len({place.index for place in record.members}) == 2 for record in records)
    assert agents[1].exit_code == 0
    assert sorted(job.indices) == [0, 1]
    assert job.step > at
    assert [recovery.lost_steps for recovery in job.core.state.recoveries.records()] == [0, 0]


def test_a_changed_configuration_is_begun_from_a_checkpoint() -> None:
    job, _ = start()
    job.save_every = 1000
    job.update_desired(train=make_desired(steps=200).train)
    job.wait(1.0)
    assert job.saved_step == job.resumed[job.record.number]


def test_a_new_coordinator_learns_of_parked_ranks_and_uses_their_state() -> None:
    job, agents = start()
    at = job.step
    agents[1].alive = False
    job.start_coordinator(2)
    job.wait(4.0)
    assert job.indices == [0, 2]
    assert job.resumed[job.record.number] >= at
    assert job.core.state.current is not None
    assert job.core.state.current.record.restored_from == "Peers"


def test_a_new_coordinator_uses_the_state_of_ranks_that_park_while_it_waits_for_others() -> None:
    """Their agents connected before they noticed that a peer had died."""
    job, agents = start()
    at = job.step
    agents[1].alive = False
    job.start_coordinator(2)
    job.wait(0.2)
    assert job.core.state.current is None
    for agent in (agents[0], agents[2]):
        job.leave_generation(agent)
    job.wait(4.0)
    assert job.indices == [0, 2]
    assert last_recovery(job)[0] == "Peers"
    assert job.resumed[job.record.number] >= at


def test_when_all_holders_of_the_state_are_gone_the_checkpoint_serves() -> None:
    job, agents = start()
    for agent in agents:
        job.crash(agent)
    for index in range(3):
        job.add_agent(index)
    job.wait(3.0)
    assert job.record.restored_from == "Checkpoint"
    assert job.resumed[job.record.number] == 10


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_parked_rank_ends_the_generation_for_all(strategy: str) -> None:
    job, agents = start(strategy=strategy)
    number = job.record.number
    agents[0].ranks_run = False
    job.send(agents[0], Parked(generation=number, rank=0, retained=Retained(step=job.step)))
    job.wait(2.5)
    assert job.record.number > number
    assert job.indices == [0, 1, 2]
    assert job.core.state.account.used("infrastructure") == 1


def test_a_worker_whose_pod_has_ended_is_no_member_again_although_its_process_lives_on() -> None:
    job, agents = start()
    number = job.record.number
    job.report_lost(agents[2], "Kubernetes reports that the pod has ended")
    job.wait(3.0)
    assert job.indices == [0, 1]
    assert job.record.number.n == number.n + 1
    assert agents[2].exit_code == 0


def test_a_killed_rank_is_the_cause_although_its_peers_report_long_before_its_agent() -> None:
    job, agents = start()
    number, rank = job.record.number, agents[1].state.local_ranks()[0]
    agents[1].ranks_run = False  # it is dead, and its agent is too busy to see it
    for agent in (agents[0], agents[2]):
        job.leave_generation(agent)
    job.wait(2 * job.desired.heartbeat_milliseconds / 1000)
    job.send(agents[1], RankExit(generation=number, rank=rank, exit_code=-9, cause="error"))
    job.wait(0.2)
    assert (job.indices, last_recovery(job)) == ([0, 1, 2], ("Peers", 0))
    account = job.core.state.account
    assert (account.used("application"), account.used("infrastructure")) == (1, 0)


def test_a_rank_whose_agent_was_unreachable_is_aborted_when_the_agent_is_back() -> None:
    job, agents = start(workers=2, replicas=2, min_replicas=1)
    agents[0].connects = False
    job.disconnect(agents[0])
    job.cut_off(agents[1])
    while job.core.state.current is not None and job.core.state.current.alive:
        job.wait(0.02)
    job.wait(0.3)
    agents[0].connects = True
    before = agents[0].is_parked
    job.wait(0.1)
    assert (before, agents[0].is_parked) == (False, True)
    job.wait(job.desired.start_grace_seconds + 0.5)
    assert job.indices == [0]
    assert last_recovery(job) == ("Peers", 0)


def test_a_rank_gets_the_time_of_its_steps_to_leave_a_generation() -> None:
    job, _ = start()
    current = job.core.state.current
    assert current is not None
    assert current.progress is not None
    assert abort_seconds(current) == 1.0
    current.progress = current.progress.model_copy(
        update={"seconds": {"step": 5.0 * current.progress.step}}
    )
    assert abort_seconds(current) == 10.0
    current.progress = current.progress.model_copy(
        update={"seconds": {"step": 500.0 * current.progress.step}}
    )
    assert abort_seconds(current) == 60.0
    current.progress, current.before = None, LastCommit(10, 0.0, step_seconds=2.0)
    assert abort_seconds(current) == 4.0
