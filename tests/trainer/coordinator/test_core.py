"""The coordinator's decisions, in virtual time."""

from __future__ import annotations

import pytest

from regroup_trainer.contract import (
    CheckpointFailed,
    CheckpointSaved,
    GenerationNumber,
    GenerationRecord,
    Progress,
    Refused,
)
from regroup_trainer.coordinator.core import TICK_SECONDS
from regroup_trainer.coordinator.effects import Send
from regroup_trainer.coordinator.status import make_status
from regroup_trainer.errors import NonFiniteError
from tests.trainer.coordinator.simulation import Job, SimulatedAgent, make_desired


def start(workers: int = 3, **desired: object) -> tuple[Job, list[SimulatedAgent]]:
    """A job whose workers have trained for a second."""
    job = Job(make_desired(**desired))
    agents = [job.add_agent(index) for index in range(workers)]
    job.wait(1.0)
    return job, agents


def test_starts_at_once_when_all_wanted_workers_are_there() -> None:
    job = Job()
    for index in range(3):
        assert job.core.state.world is None
        job.add_agent(index)
    assert job.indices == [0, 1, 2]
    assert job.record.rung == "start"


def test_a_world_that_trains_on_is_looked_at_seldom_until_something_is_wrong_or_wanted() -> None:
    job, agents = start()
    seldom = job.desired.heartbeat_milliseconds / 1000
    assert job.core.pause(job.now) == seldom
    job.wish(replicas=2)
    assert job.core.pause(job.now) == TICK_SECONDS
    job.wait(2.0)
    assert job.indices == [0, 1]
    assert job.core.pause(job.now) == seldom
    job.disconnect(agents[1])
    assert job.core.pause(job.now) == TICK_SECONDS


def test_a_world_of_which_a_member_falls_silent_is_looked_at_often() -> None:
    job, agents = start()
    job.silence(agents[1])
    job.wait(1.5)
    assert job.core.pause(job.now) == TICK_SECONDS


def test_a_job_without_a_world_is_looked_at_often() -> None:
    assert Job().core.pause(100.0) == TICK_SECONDS


def test_starts_with_the_least_after_the_grace() -> None:
    job = Job(make_desired(start_grace_seconds=3.0))
    job.add_agent(0)
    job.add_agent(1)
    job.wait(2.5)
    assert job.core.state.world is None
    job.wait(1.0)
    assert job.indices == [0, 1]


def test_says_how_many_workers_it_waits_for_and_misses_none_before_they_can_have_come() -> None:
    job = Job()
    job.wait(0.1)
    assert make_status(job.core.state, 1).message == "waiting for workers"
    job.wait(3.0)
    assert make_status(job.core.state, 1).message == "waiting for 2 more workers: have 0 of at least 2"
    job.add_agent(0)
    job.wait(0.1)
    assert make_status(job.core.state, 1).message == "waiting for 1 more worker: have 1 of at least 2"


def test_a_failed_save_is_told_until_a_save_succeeds() -> None:
    job, agents = start()
    leader = next(agent for agent in agents if agent.name == job.record.members[0].member)
    number = job.record.number
    job.say(leader, CheckpointFailed(generation=number, rank=0, step=5, stage="write", error="no space"))
    assert "checkpoint of step 5 failed (write): no space" in make_status(job.core.state, 1).message
    saved = CheckpointSaved(
        generation=number, rank=0, step=6, path="p", size_bytes=1, seconds=0.1, blocking_seconds=0.1, time=0.0
    )
    job.say(leader, saved)
    assert "failed" not in make_status(job.core.state, 1).message


def test_rank_zero_is_on_another_node_than_the_coordinator() -> None:
    job = Job()
    job.add_agent(0, node="node-c")
    job.add_agent(1)
    job.add_agent(2)
    assert job.indices == [1, 0, 2]


def test_a_crashed_worker_costs_less_than_a_tenth_of_a_second_to_notice() -> None:
    job, agents = start()
    before = job.now
    job.crash(agents[1])
    job.wait(0.1)
    assert job.indices == [0, 2]
    assert job.record.number == GenerationNumber(1, 2)
    assert job.core.state.world is not None
    assert job.core.state.world.begun - before <= 0.1


def test_a_silent_node_is_lost_after_the_timeout() -> None:
    job, agents = start()
    job.silence(agents[0])
    job.wait(1.4)
    assert job.record.number.n == 1
    job.wait(1.0)
    assert job.indices == [1, 2]
    assert 1.5 <= job.core.state.recoveries.records()[-1].detect_seconds <= 2.1


def test_two_workers_of_one_dead_node_cost_one_generation() -> None:
    job = Job(make_desired(replicas=4))
    agents = [job.add_agent(index) for index in range(4)]
    job.wait(1.2)
    job.core.heartbeat(agents[1].name, job.now)
    job.silence(agents[0])
    job.silence(agents[1])
    job.wait(3.0)
    assert job.indices == [2, 3]
    assert job.record.number.n == 2


def test_a_broken_connection_alone_loses_nobody() -> None:
    job, agents = start()
    job.disconnect(agents[1])
    job.wait(3.0)
    assert job.record.number.n == 1
    assert job.step > 10


def test_a_closed_connection_and_silence_are_a_loss_after_two_heartbeats() -> None:
    job, agents = start()
    job.silence(agents[1])
    job.disconnect(agents[1])
    job.wait(1.2)
    assert job.indices == [0, 2]


def test_the_word_of_the_operator_is_acted_on_at_once() -> None:
    job, agents = start()
    job.give_up(agents[2], "node NotReady")
    assert job.indices == [0, 1]
    assert "node NotReady" in job.core.state.recoveries.records()[-1].message


def test_a_paused_coordinator_does_not_declare_everybody_lost() -> None:
    job, _agents = start()
    job.pause_coordinator(10.0)
    job.wait(1.0)
    assert job.record.number.n == 1
    assert len(job.core.state.members) == 3


def test_below_the_least_it_waits_and_goes_on_with_a_replacement() -> None:
    job, agents = start(workers=2, replicas=2)
    job.crash(agents[0])
    job.wait(5.0)
    status = make_status(job.core.state, 1)
    assert status.phase == "recovering"
    assert "waiting for 1 more worker: have 1 of at least 2" in status.message
    job.add_agent(0)
    job.wait(0.5)
    assert sorted(job.indices) == [0, 1]


def test_a_replacement_joins_by_a_planned_resize_and_nothing_is_lost() -> None:
    job, agents = start()
    job.crash(agents[1])
    job.wait(1.0)
    lost_before = job.core.state.account.ledger().lost_steps
    job.add_agent(1)
    job.wait(1.0)
    assert job.indices == [0, 2, 1]
    assert job.core.state.account.ledger().lost_steps == lost_before
    assert job.core.state.recoveries.records()[-1].cause == "resize"


def test_survivors_come_before_joiners() -> None:
    job, agents = start()
    job.crash(agents[0])
    job.wait(0.5)
    job.add_agent(0)
    job.wait(1.0)
    assert job.indices == [1, 2, 0]


def test_scaling_up_waits_for_the_new_worker_and_down_lets_the_highest_index_go() -> None:
    job, agents = start()
    job.wish(replicas=4)
    job.wait(1.0)
    assert job.record.world_size == 3
    job.add_agent(3)
    job.wait(1.0)
    assert job.indices == [0, 1, 2, 3]
    job.wish(replicas=2)
    message = make_status(job.core.state, 1).message
    assert message.startswith("leaving generation 1.2 together, at the next step: ")
    assert message.endswith(" goes")
    job.wait(1.0)
    assert job.indices == [0, 1]
    assert agents[2].exit_code == 0


def test_never_more_workers_than_the_maximum() -> None:
    job, _agents = start()
    job.wish(replicas=9)
    for index in range(3, 9):
        job.add_agent(index)
    job.wait(2.0)
    assert job.record.world_size == 4


def test_the_world_is_a_multiple_of_the_replica_group() -> None:
    job = Job(make_desired(replicas=4, replica_group_size=2))
    agents = [job.add_agent(index) for index in range(4)]
    job.wait(1.0)
    job.crash(agents[3])
    job.wait(1.0)
    assert job.record.world_size == 2
    assert len(job.core.state.members) == 3
    message = make_status(job.core.state, 1).message
    assert "on 2 workers of 4 wanted" in message
    assert "without a rank: its replica group is not whole" in message
    job.add_agent(3)
    job.wait(2.0)
    assert job.record.world_size == 4


def test_an_application_failure_restarts_the_same_members() -> None:
    job, agents = start()
    job.fail_rank(agents[1])
    job.wait(0.2)
    assert job.indices == [0, 1, 2]
    assert job.record.number.n == 2
    recovery = job.core.state.recoveries.records()[-1]
    assert (recovery.cause, recovery.rung, recovery.exit_code) == ("application", "L0", 1)


def test_restarts_without_progress_back_off_and_end_in_failure() -> None:
    job, agents = start(max_restarts=3, backoff_seconds=1.0)
    job.save_every = 1000
    generations = []
    for _ in range(4):
        job.fail_rank(agents[1], exit_code=7)
        started = job.now
        while job.verdict is None and not agents[1].ranks_run:
            job.wait(0.05)
        generations.append(round(job.now - started))
    assert generations == [0, 1, 2, 0]
    assert job.verdict is not None
    assert (job.verdict.outcome, job.verdict.exit_code) == ("failed", 7)
    assert "the budget of 3 restarts is used up" in job.verdict.message


@pytest.mark.parametrize("code", [2, 126, 127])
def test_hopeless_exit_codes_fail_the_job_at_once(code: int) -> None:
    job, agents = start()
    job.fail_rank(agents[1], exit_code=code)
    job.wait(0.1)
    assert job.verdict is not None
    assert job.verdict.exit_code == code
    assert {agent.exit_code for agent in agents} == {code}


def test_lost_members_and_peer_errors_count_against_no_budget() -> None:
    job, agents = start(max_restarts=0)
    job.crash(agents[1])
    job.wait(1.0)
    assert job.verdict is None
    assert job.core.state.account.ledger().restarts == {"infrastructure": 1}


def test_the_first_cause_is_named_although_its_peers_report_first() -> None:
    job, agents = start()
    agents[1].ranks_run = False  # it is on its way out, and hears nothing
    for peer in (agents[0], agents[2]):
        job.rank_ends(peer, "peer", 75)
    job.wait(0.1)
    assert job.record.number.n == 1
    agents[1].ranks_run = True
    job.rank_ends(agents[1], "error", 3)
    job.wait(0.1)
    assert job.core.state.recoveries.records()[-1].exit_code == 3


def test_completion_ends_all_agents_with_code_zero() -> None:
    job, agents = start(steps=5)
    job.wait(1.0)
    assert job.verdict is not None
    assert job.verdict.outcome == "completed"
    assert {agent.exit_code for agent in agents} == {0}


def test_suspension_saves_first() -> None:
    job, agents = start()
    job.wish(suspend=True)
    job.wait(1.0)
    assert job.verdict is not None
    assert job.verdict.outcome == "suspended"
    assert job.saved_step == agents[0].step
    assert {agent.exit_code for agent in agents} == {0}


def test_one_worker_may_leave_without_loss() -> None:
    job, agents = start()
    job.ask_to_leave(agents[2])
    job.wait(1.0)
    assert job.indices == [0, 1]
    assert agents[2].exit_code == 0
    assert job.core.state.account.ledger().lost_steps == 0


def test_a_worker_that_leaves_keeps_its_place_until_the_agreed_end_though_its_replacement_is_there() -> None:
    job, agents = start()
    job.ask_to_leave(agents[0])
    replacement = job.add_agent(0)
    job.wait(2.0)
    assert agents[0].exit_code == 0
    assert job.indices == [1, 2, 0]
    assert replacement.ranks_run
    ledger = job.core.state.account.ledger()
    assert (ledger.lost_steps, ledger.restarts) == (0, {"preemption": 1})


def test_when_all_leave_the_state_is_saved_and_the_job_goes_on_later() -> None:
    job, agents = start()
    for agent in agents:
        job.ask_to_leave(agent)
    job.wait(1.0)
    assert {agent.exit_code for agent in agents} == {0}
    assert job.verdict is None
    at = job.saved_step
    for index in range(3):
        job.add_agent(index)
    job.wait(0.3)
    assert job.core.state.recoveries.records()[-1].resumed_from_step == at


def test_a_restarted_coordinator_adopts_the_running_world() -> None:
    job, _agents = start()
    at = job.step
    job.start_coordinator(term=2)
    job.wait(1.0)
    assert job.record.number == GenerationNumber(1, 1)
    assert job.step > at
    assert len(job.begun) == 1


def test_a_restarted_coordinator_knows_what_the_ranks_told_its_predecessor() -> None:
    job, agents = start(script=("train.py",), progress_timeout_seconds=5)
    job.start_coordinator(term=2)
    job.wait(1.0)
    world = job.core.state.world
    assert world is not None
    assert not world.speechless
    assert world.resumed_from() == 0
    assert job.core.state.resumed == [(GenerationNumber(1, 1), 0)]
    job.hang(agents[1])
    job.wait(8.0)
    assert job.core.state.recoveries.records()[-1].cause == "hang"


def test_a_restarted_coordinator_forms_a_world_without_those_who_do_not_return() -> None:
    job, agents = start()
    agents[1].alive = False
    job.start_coordinator(term=2)
    job.wait(1.5)
    assert job.core.state.world is None
    job.wait(1.5)
    assert job.indices == [0, 2]
    assert job.record.number.term == 2


def test_members_that_come_back_one_after_the_other_keep_their_world() -> None:
    job, agents = start()
    for agent in agents:
        agent.holds_on = True
    job.start_coordinator(term=2)
    for agent in agents:
        job.wait(1.4)
        agent.holds_on = False
    job.wait(0.1)
    assert job.record.number == GenerationNumber(1, 1)
    assert len(job.begun) == 1


def test_a_member_whose_heartbeats_are_heard_but_that_never_says_hello_is_given_up() -> None:
    job, agents = start(steps=10_000)
    agents[1].holds_on = True
    job.start_coordinator(term=2)
    job.wait(10.0)
    assert job.core.state.world is None
    job.wait(4.0)
    assert job.indices == [0, 2]


def test_a_restarted_container_of_the_same_term_never_reuses_a_number() -> None:
    job, agents = start()
    job.start_coordinator()
    job.wait(0.5)
    job.crash(agents[0])
    job.wait(0.5)
    assert job.record.number.n > 1


def test_the_newest_wish_is_learnt_from_the_agents() -> None:
    job, agents = start()
    job.wish(replicas=2)
    job.wait(1.0)
    job.desired = make_desired(replicas=3)
    job.start_coordinator(term=2)
    job.wait(1.0)
    assert job.core.state.desired.replicas == 2
    assert agents[2].exit_code == 0


def test_a_coordinator_of_a_lower_term_is_refused_by_what_agents_have_seen() -> None:
    job, agents = start()
    job.start_coordinator(term=3)
    job.wait(1.0)
    job.crash(agents[0])
    job.wait(1.0)
    job.start_coordinator(term=2)
    effects = job.core.handle(agents[1].memory.hello(), agents[1].name, job.now)
    assert [type(effect.message) for effect in effects if isinstance(effect, Send)] == [Refused]
    job.wait(5.0)
    assert job.core.state.world is None


def test_a_lost_member_that_returns_kills_its_ranks_and_joins_anew() -> None:
    job, agents = start()
    job.silence(agents[1])
    job.wait(3.0)
    assert job.indices == [0, 2]
    agents[1].reachable = True
    job.wait(1.5)
    assert job.indices == [0, 2, 1]
    assert agents[1].memory.record == job.record


def test_a_report_of_a_fenced_member_changes_nothing() -> None:
    job, agents = start()
    old = agents[1].memory.record
    assert isinstance(old, GenerationRecord)
    job.silence(agents[1])
    job.wait(3.0)
    before = make_status(job.core.state, 1)
    for number in (old.number, job.record.number):
        report = Progress(generation=number, rank=1, step=10_000, time=0.0)
        job.core.handle(report, agents[1].name, job.now)
    assert make_status(job.core.state, 1) == before


def test_lost_steps_and_down_time_are_recorded() -> None:
    job, agents = start(strategy="fsdp")
    job.wait(0.6)
    at = job.step
    assert at > 10
    job.crash(agents[1])
    job.wait(1.0)
    recovery = job.core.state.recoveries.records()[-1]
    assert recovery.lost_steps == at - 10
    assert recovery.resumed_from_step == 10
    assert recovery.down_seconds is not None
    assert 0 < recovery.down_seconds < 0.5
    assert (recovery.world_before, recovery.world_after) == (3, 2)
    assert job.core.state.account.ledger().lost_steps == at - 10


def test_ranks_that_do_not_honour_a_decision_are_ended_by_force() -> None:
    job, agents = start()
    for agent in agents:
        agent.ranks_run = False  # they hang
    job.ask_to_leave(agents[2])
    job.wait(62.0)
    assert job.indices == [0, 1]


def test_a_volume_that_refuses_claims_is_named_and_tried_again() -> None:
    job = Job()
    job.core.claim_failed("Permission denied (/volume/gpt)", job.now)
    assert "Permission denied" in make_status(job.core.state, 1).message


def test_a_replaced_member_that_returns_is_let_go() -> None:
    job, agents = start()
    job.silence(agents[1])
    job.wait(3.0)
    job.add_agent(1)
    job.wait(1.0)
    number = job.record.number
    agents[1].reachable = True
    job.wait(3.0)
    assert agents[1].exit_code == 0
    assert job.record.number == number


def test_connections_between_ranks_that_never_work_are_tried_ever_less_often() -> None:
    job, agents = start(max_restarts=0, strategy="fsdp")
    job.save_every = 1000
    started = job.now
    for _ in range(6):
        job.rank_ends(agents[0], "peer", 75)
        while not agents[0].ranks_run:
            job.wait(0.1)
    assert job.verdict is None
    assert job.now - started > 15.0


def test_a_coordinator_that_starts_while_suspending_waits_for_the_ranks_to_save() -> None:
    job, agents = start()
    job.wish(suspend=True)
    for agent in agents:
        agent.reachable = False
    job.start_coordinator(term=2)
    job.wait(0.5)
    too_early = job.verdict
    assert too_early is None
    for agent in agents:
        agent.reachable = True
    job.wait(1.0)
    assert job.verdict is not None
    assert job.saved_step == agents[0].step


def test_left_out_updates_are_told_once_in_a_while_and_the_end_is_not_tried_again() -> None:
    job, agents = start(steps=10_000)
    leader = next(agent for agent in agents if agent.name == job.record.members[0].member)
    report = Progress(generation=job.record.number, rank=0, step=job.step + 1, time=0.0)
    for skipped in range(1, 5):
        job.say(leader, report.model_copy(update={"step": report.step + skipped, "skipped": skipped}))
    (event,) = [event for event in job.core.state.journal.events() if event.reason == "NonFiniteLoss"]
    assert event.type == "Warning"
    assert event.message.startswith("1 updates of generation 1.1 were left out")
    job.fail_rank(leader, exit_code=NonFiniteError.exit_code)
    job.wait(1.0)
    assert job.verdict is not None
    assert job.verdict.outcome == "failed"
    assert "an error that would come again" in job.verdict.message
