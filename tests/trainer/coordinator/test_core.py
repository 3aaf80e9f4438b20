"""The coordinator's decisions, in virtual time."""

from __future__ import annotations

import math
import re
from typing import Literal

import pytest

from regroup_trainer.coordinator.coordinator_status import handed_over, make_status
from regroup_trainer.coordinator.core import RETURN_TO_SAVE_SECONDS, TICK_SECONDS
from regroup_trainer.coordinator.effects import Send
from regroup_trainer.coordinator.reports import MOST_PORT_RACES
from regroup_trainer.coordinator.restart_budget import LEAST_SECONDS, MOST_IN_A_ROW
from regroup_trainer.errors import NonFiniteError
from regroup_trainer.protocol.coordinator_messages import Refused
from regroup_trainer.protocol.desired import LastKnown
from regroup_trainer.protocol.exit_codes import PORT_TAKEN_EXIT_CODE
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord
from regroup_trainer.protocol.rank_messages import (
    CheckpointFailed,
    Finished,
    Progress,
    Restored,
    SkippedCheckpoint,
)
from tests.support.coordinator_simulation import Job, SimulatedAgent, make_desired, start_job
from tests.support.generations import make_saved


def test_starts_at_once_when_all_wanted_workers_are_there() -> None:
    job = Job()
    for index in range(3):
        assert job.core.state.current is None
        job.add_agent(index)
    assert job.indices == [0, 1, 2]
    assert job.record.restored_from == "Nothing"


def test_ticks_are_rare_while_a_generation_trains_and_nothing_is_wrong_or_wanted() -> None:
    job, agents = start_job()
    seldom = job.desired.heartbeat_milliseconds / 1000
    assert job.core.pause(job.now) == seldom
    job.update_desired(replicas=2)
    assert job.core.pause(job.now) == TICK_SECONDS
    job.wait(2.0)
    assert job.indices == [0, 1]
    assert job.core.pause(job.now) == seldom
    job.disconnect(agents[1])
    assert job.core.pause(job.now) == TICK_SECONDS


def test_ticks_are_frequent_while_a_member_is_unresponsive() -> None:
    job, agents = start_job()
    job.cut_off(agents[1])
    job.wait(1.5)
    assert job.core.pause(job.now) == TICK_SECONDS


def test_ticks_are_frequent_without_a_generation() -> None:
    assert Job().core.pause(100.0) == TICK_SECONDS


def test_starts_with_the_least_after_the_grace() -> None:
    job = Job(make_desired(start_grace_seconds=3.0))
    job.add_agent(0)
    job.add_agent(1)
    job.wait(2.5)
    assert job.core.state.current is None
    job.wait(1.0)
    assert job.indices == [0, 1]


def test_the_status_names_missing_workers_once_they_could_have_come() -> None:
    job = Job()
    job.wait(0.1)
    assert make_status(job.core.state, 1).message.startswith("waiting for workers: none")
    job.wait(3.0)
    assert make_status(job.core.state, 1).message == (
        "waiting for 2 more workers: have 0 of at least 2 (see the pods of gpt-w0, gpt-w1, gpt-w2)"
    )
    job.add_agent(0)
    job.wait(0.1)
    assert make_status(job.core.state, 1).message == (
        "waiting for 1 more worker: have 1 of at least 2 (see the pods of gpt-w1, gpt-w2)"
    )


def test_a_failed_save_is_in_the_message_until_a_save_succeeds() -> None:
    job, agents = start_job()
    rank0 = next(agent for agent in agents if agent.name == job.record.members[0].member)
    number = job.record.number
    job.send(
        rank0, CheckpointFailed(generation=number, rank=0, step=5, stage="write", error="no space")
    )
    assert "checkpoint of step 5 failed (write): no space" in make_status(job.core.state, 1).message
    saved = make_saved(number, 6)
    job.send(rank0, saved)
    assert "failed" not in make_status(job.core.state, 1).message
    again = CheckpointFailed(generation=number, rank=0, step=9, stage="write", error="no space")
    job.send(rank0, again)
    assert last_event(job, "CheckpointFailed") == (
        "checkpoint of step 9 failed (write): no space; the newest is that of step 6"
    )
    job.send(rank0, again.model_copy(update={"stage": "prune"}))
    assert last_event(job, "CheckpointFailed") == (
        "old checkpoints could not be deleted after that of step 9, which is whole: no space"
    )


def last_event(job: Job, reason: str) -> str:
    """The message of the newest event of a reason."""
    events = job.core.state.journal.events()
    return next(event.message for event in reversed(events) if event.reason == reason)


def test_a_checkpoint_that_is_passed_over_is_named_with_what_is_used_instead() -> None:
    job = Job()
    agents = [job.add_agent(index) for index in range(3)]
    rank0 = next(agent for agent in agents if agent.name == job.record.members[0].member)
    skipped = SkippedCheckpoint(path="/volume/gpt/step-8", why="__0_0.distcp is missing")
    restored = Restored(
        generation=job.record.number, rank=0, step=4, restored_from="Checkpoint", skipped=(skipped,)
    )
    job.send(rank0, restored)
    assert last_event(job, "CheckpointCorrupt") == (
        "/volume/gpt/step-8 cannot be used (__0_0.distcp is missing): the state comes from a "
        "checkpoint of step 4"
    )


def test_a_worker_that_leaves_is_named_with_its_node_and_with_who_ends_pods() -> None:
    job, agents = start_job()
    job.ask_to_leave(agents[1])
    job.wait(1.0)
    assert job.core.state.recoveries.records()[-1].message == (
        "worker gpt-w1-2 on node node-1 received SIGTERM (the pod is being deleted: a drain, an "
        "eviction, or by hand)"
    )
    local, agents = start_job(namespace="local")
    local.ask_to_leave(agents[1])
    local.wait(1.0)
    message = local.core.state.recoveries.records()[-1].message
    assert message == "worker gpt-w1-2 on node node-1 received SIGTERM"


def test_rank_zero_is_on_another_node_than_the_coordinator() -> None:
    job = Job()
    job.add_agent(0, node="node-c")
    job.add_agent(1)
    job.add_agent(2)
    assert job.indices == [1, 0, 2]


def test_a_crashed_worker_costs_less_than_a_tenth_of_a_second_to_notice() -> None:
    job, agents = start_job()
    before = job.now
    job.crash(agents[1])
    job.wait(0.1)
    assert job.indices == [0, 2]
    assert job.record.number == GenerationNumber(1, 2)
    assert job.core.state.current is not None
    assert job.core.state.current.begun - before <= 0.1


def test_an_unresponsive_node_is_lost_after_the_timeout() -> None:
    job, agents = start_job()
    job.cut_off(agents[0])
    job.wait(1.4)
    assert job.record.number.n == 1
    job.wait(1.0)
    assert job.indices == [1, 2]
    assert 1.5 <= job.core.state.recoveries.records()[-1].detect_seconds <= 2.1


def test_two_workers_of_one_dead_node_cost_one_generation() -> None:
    job = Job(make_desired(replicas=4))
    agents = [job.add_agent(index) for index in range(4)]
    job.wait(1.2)
    job.core.on_heartbeat(agents[1].name, job.now)
    job.cut_off(agents[0])
    job.cut_off(agents[1])
    job.wait(3.0)
    assert job.indices == [2, 3]
    assert job.record.number.n == 2


def test_a_broken_connection_alone_loses_nobody() -> None:
    job, agents = start_job()
    job.disconnect(agents[1])
    job.wait(3.0)
    assert job.record.number.n == 1
    assert job.step > 10


def test_a_closed_connection_and_no_heartbeat_are_a_loss_after_two_heartbeats() -> None:
    job, agents = start_job()
    job.cut_off(agents[1])
    job.disconnect(agents[1])
    job.wait(1.2)
    assert job.indices == [0, 2]


def test_a_loss_that_the_operator_reports_counts_at_once() -> None:
    job, agents = start_job()
    job.report_lost(agents[2], "node NotReady")
    assert job.indices == [0, 1]
    assert "node NotReady" in job.core.state.recoveries.records()[-1].message


def test_a_paused_coordinator_does_not_declare_everybody_lost() -> None:
    job, _agents = start_job()
    job.pause_coordinator(10.0)
    job.wait(1.0)
    assert job.record.number.n == 1
    assert len(job.core.state.members) == 3


def test_below_the_least_it_waits_and_goes_on_with_a_replacement() -> None:
    job, agents = start_job(workers=2, replicas=2)
    job.crash(agents[0])
    job.wait(5.0)
    status = make_status(job.core.state, 1)
    assert status.phase == "recovering"
    assert "waiting for 1 more worker: have 1 of at least 2" in status.message
    job.add_agent(0)
    job.wait(0.5)
    assert sorted(job.indices) == [0, 1]


def test_a_replacement_joins_by_a_planned_resize_and_nothing_is_lost() -> None:
    job, agents = start_job()
    job.crash(agents[1])
    job.wait(1.0)
    lost_before = job.core.state.account.ledger().lost_steps
    job.add_agent(1)
    job.wait(1.0)
    assert job.indices == [0, 2, 1]
    assert job.core.state.account.ledger().lost_steps == lost_before
    assert job.core.state.recoveries.records()[-1].cause == "resize"


def test_survivors_come_before_joiners() -> None:
    job, agents = start_job()
    job.crash(agents[0])
    job.wait(0.5)
    job.add_agent(0)
    job.wait(1.0)
    assert job.indices == [1, 2, 0]


def test_scaling_up_waits_for_the_new_worker_and_down_releases_the_highest_index() -> None:
    job, agents = start_job()
    job.update_desired(replicas=4)
    job.wait(1.0)
    assert job.record.world_size == 3
    job.add_agent(3)
    job.wait(1.0)
    assert job.indices == [0, 1, 2, 3]
    job.update_desired(replicas=2)
    message = make_status(job.core.state, 1).message
    assert message.startswith("generation 1.2 ends after a step that its ranks agree on: ")
    assert message.endswith("gpt-w2-3, gpt-w3-4 go")
    job.wait(1.0)
    assert job.indices == [0, 1]
    assert agents[2].exit_code == 0


def test_never_more_workers_than_the_maximum() -> None:
    job, _agents = start_job()
    job.update_desired(replicas=9)
    for index in range(3, 9):
        job.add_agent(index)
    job.wait(2.0)
    assert job.record.world_size == 4


def test_a_generation_has_whole_replica_groups() -> None:
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
    job, agents = start_job()
    job.fail_rank(agents[1])
    job.wait(0.2)
    assert job.indices == [0, 1, 2]
    assert job.record.number.n == 2
    recovery = job.core.state.recoveries.records()[-1]
    assert (recovery.cause, recovery.restored_from, recovery.exit_code) == (
        "application",
        "Peers",
        1,
    )


def test_restarts_without_progress_back_off_and_end_in_failure() -> None:
    job, agents = start_job(max_restarts=3, backoff_seconds=1.0)
    job.save_every = 1000
    generations = []
    for _ in range(4):
        job.fail_rank(agents[1], exit_code=7)
        started = job.now
        while job.outcome is None and not agents[1].ranks_run:
            job.wait(0.05)
        generations.append(round(job.now - started))
    assert generations == [0, 1, 2, 0]
    assert job.outcome is not None
    assert (job.outcome.result, job.outcome.exit_code) == ("failed", 7)
    assert "the budget of 3 restarts is used up" in job.outcome.message


@pytest.mark.parametrize("code", [2, 126, 127])
def test_permanent_exit_codes_fail_the_job_at_once(code: int) -> None:
    job, agents = start_job()
    job.fail_rank(agents[1], exit_code=code)
    job.wait(0.1)
    assert job.outcome is not None
    assert job.outcome.exit_code == code
    assert {agent.exit_code for agent in agents} == {code}


def test_lost_members_and_peer_errors_count_against_no_budget() -> None:
    job, agents = start_job(max_restarts=0)
    job.crash(agents[1])
    job.wait(1.0)
    assert job.outcome is None
    assert job.core.state.account.ledger().restarts == {"infrastructure": 1}


def report_nothing(job: Job) -> None:
    """Have the ranks be those of a program without a Session."""
    assert job.core.state.current is not None
    job.core.state.current.restored.clear()


OF_GLOO = (
    "Traceback (most recent call last):\n  File ...\nRuntimeError: "
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer\n"
)
OF_DATABASE = "Traceback (most recent call last):\n  File ...\nConnectionResetError: the database\n"


def break_connections(job: Job) -> None:
    """Each rank loses its connections, though all ranks and workers are there."""
    if job.desired.script:
        report_nothing(job)
    for agent in [*job.agents.values()]:
        if job.desired.script:
            job.rank_ends(agent, "peer", 75, OF_GLOO)
        else:
            job.leave_generation(agent)
    job.wait(1.0)


def test_a_connection_of_its_own_that_a_program_lost_is_its_own_matter() -> None:
    job, agents = start_job(script=("train.py",), max_restarts=1)
    for _ in range(2):
        report_nothing(job)
        for agent, message in zip(agents, (OF_DATABASE, OF_GLOO, OF_GLOO), strict=True):
            job.rank_ends(agent, "peer", 75, message)
        job.wait(5.0)
    assert job.core.state.account.ledger().restarts == {"application": 2}
    assert job.outcome is not None
    assert "no rank and no worker was lost" in job.outcome.message


@pytest.mark.parametrize("script", [(), ("train.py",)], ids=["built in", "plain script"])
def test_connections_that_break_while_all_ranks_live_use_up_no_budget(
    script: tuple[str, ...],
) -> None:
    job, _agents = start_job(script=script, max_restarts=0, steps=1000)
    for _ in range(3):
        break_connections(job)
        await_next_generation(job, job.agents[job.record.members[0].member])
    assert job.outcome is None
    assert job.core.state.account.ledger().restarts == {"infrastructure": 3}
    assert "no rank and no worker was lost" in job.core.state.recoveries.records()[-1].message


@pytest.mark.parametrize("script", [(), ("train.py",)], ids=["built in", "plain script"])
def test_connections_that_always_break_before_a_step_end_the_job_with_what_to_look_at(
    script: tuple[str, ...],
) -> None:
    job, agents = start_job(script=script, max_restarts=-1, max_backoff_seconds=5.0)
    job.step_seconds, breaks = math.inf, 0  # no generation makes a step any more
    job.wait(0.5)
    while job.outcome is None and breaks < 2 * MOST_IN_A_ROW:
        break_connections(job)
        breaks += 1
        if breaks == MOST_IN_A_ROW - 1:
            job.now += LEAST_SECONDS  # nothing happens meanwhile
        await_next_generation(job, agents[0])
    assert job.outcome is not None
    assert f"{MOST_IN_A_ROW} generations in a row" in job.outcome.message
    assert all(word in job.outcome.message for word in ("network", "MTU", "interface"))
    assert job.core.state.account.ledger().restarts["application"] == 1


def await_next_generation(job: Job, agent: SimulatedAgent) -> None:
    """Return when the agent's rank runs, or the job has ended."""
    until = job.now + 60.0
    while job.outcome is None and not agent.ranks_run:
        assert job.now < until
        job.wait(0.1)


@pytest.mark.parametrize("code", [143, 130])
@pytest.mark.parametrize("cause", ["signal", "error"])
def test_a_rank_that_is_asked_to_end_from_outside_is_preempted(
    cause: Literal["signal", "error"], code: int
) -> None:
    job, agents = start_job(max_restarts=0)
    job.rank_ends(agents[1], cause, code)
    job.wait(1.0)
    assert job.outcome is None
    assert job.core.state.account.ledger().restarts == {"preemption": 1}
    assert "from outside" in job.core.state.recoveries.records()[-1].message
    assert job.record.number.n == 2


def test_the_steps_that_a_preempted_rank_takes_along_are_named() -> None:
    job, agents = start_job(strategy="fsdp", steps=1000)
    job.save_every = 1000
    job.wait(1.0)
    job.rank_ends(agents[1], "signal", 143)
    job.wait(2.0)
    assert re.search(r"[1-9]\d* steps lost", last_event(job, "Recovered"))


def test_a_rank_that_is_asked_to_end_at_each_start_ends_the_job_at_last() -> None:
    job, agents = start_job(max_restarts=-1, max_backoff_seconds=5.0)
    job.step_seconds, ends = math.inf, 0
    job.wait(0.5)
    while job.outcome is None and ends < 2 * MOST_IN_A_ROW:
        job.rank_ends(agents[0], "signal", 143)
        ends += 1
        if ends == MOST_IN_A_ROW - 1:
            job.now += LEAST_SECONDS
        await_next_generation(job, agents[0])
    assert job.outcome is not None
    assert f"{MOST_IN_A_ROW} generations in a row" in job.outcome.message
    assert "SIGTERM or SIGINT" in job.outcome.message


def test_a_rank_that_ended_well_too_early_is_named_where_others_lose_it() -> None:
    job, agents = start_job(script=("train.py",), max_restarts=0)
    report_nothing(job)
    agents[0].ranks_run, (early,) = False, agents[0].state.local_ranks()
    number = job.record.number
    job.send(agents[0], Finished(generation=number, rank=early, step=0, reason="completed"))
    for agent in agents[1:]:
        job.rank_ends(agent, "peer", 75)
    job.wait(5.0)
    assert job.outcome is not None
    assert f"; rank {early} had ended well: let all ranks do the same steps)" in job.outcome.message


def test_a_lost_race_for_a_port_is_charged_to_nobody_but_not_for_ever() -> None:
    job, agents = start_job(script=("train.py",), max_restarts=0)
    for _ in range(MOST_PORT_RACES):
        report_nothing(job)
        job.rank_ends(agents[0], "peer", PORT_TAKEN_EXIT_CODE)
        job.wait(1.0)
        assert job.outcome is None
    assert job.core.state.account.ledger().restarts == {"infrastructure": MOST_PORT_RACES}
    report_nothing(job)
    job.rank_ends(agents[0], "peer", PORT_TAKEN_EXIT_CODE)
    job.wait(5.0)
    assert job.outcome is not None


def test_a_connection_that_a_program_lost_with_its_peer_is_not() -> None:
    job, agents = start_job(script=("train.py",), max_restarts=0)
    report_nothing(job)
    job.rank_ends(agents[0], "peer", 75)
    job.crash(agents[1])
    job.wait(5.0)
    assert job.outcome is None
    assert job.core.state.account.ledger().restarts == {"infrastructure": 1}


def test_the_first_cause_is_named_although_its_peers_report_first() -> None:
    job, agents = start_job()
    agents[1].ranks_run = False  # its process ends, and receives nothing more
    for peer in (agents[0], agents[2]):
        job.rank_ends(peer, "peer", 75)
    job.wait(0.1)
    assert job.record.number.n == 1
    agents[1].ranks_run = True
    job.rank_ends(agents[1], "error", 3)
    job.wait(0.1)
    assert job.core.state.recoveries.records()[-1].exit_code == 3


def test_completion_ends_all_agents_with_code_zero() -> None:
    job, agents = start_job(steps=5)
    job.wait(1.0)
    assert job.outcome is not None
    assert job.outcome.result == "completed"
    assert {agent.exit_code for agent in agents} == {0}


def test_suspension_saves_first() -> None:
    job, agents = start_job()
    job.update_desired(suspend=True)
    job.wait(1.0)
    assert job.outcome is not None
    assert job.outcome.result == "suspended"
    assert job.saved_step == agents[0].step
    assert {agent.exit_code for agent in agents} == {0}


def test_one_worker_may_leave_without_loss() -> None:
    job, agents = start_job()
    job.ask_to_leave(agents[2])
    job.wait(1.0)
    assert job.indices == [0, 1]
    assert agents[2].exit_code == 0
    assert job.core.state.account.ledger().lost_steps == 0


def test_a_worker_that_leaves_keeps_its_place_until_the_agreed_end() -> None:
    job, agents = start_job()
    job.ask_to_leave(agents[0])
    replacement = job.add_agent(0)
    job.wait(2.0)
    assert agents[0].exit_code == 0
    assert job.indices == [1, 2, 0]
    assert replacement.ranks_run
    ledger = job.core.state.account.ledger()
    assert (ledger.lost_steps, ledger.restarts) == (0, {"preemption": 1})


def test_when_all_leave_the_state_is_saved_and_the_job_goes_on_later() -> None:
    job, agents = start_job()
    for agent in agents:
        job.ask_to_leave(agent)
    job.wait(1.0)
    assert {agent.exit_code for agent in agents} == {0}
    assert job.outcome is None
    at = job.saved_step
    for index in range(3):
        job.add_agent(index)
    job.wait(0.3)
    assert job.core.state.recoveries.records()[-1].resumed_from_step == at


def test_a_restarted_coordinator_adopts_the_running_generation() -> None:
    job, _agents = start_job()
    at = job.step
    job.start_coordinator(term=2)
    job.wait(1.0)
    assert job.record.number == GenerationNumber(1, 1)
    assert job.step > at
    assert len(job.begun) == 1


def test_a_generation_counts_the_failures_before_it_also_under_a_new_coordinator() -> None:
    job, agents = start_job(backoff_seconds=0.0, steps=1000)
    assert job.record.failures == 0
    job.fail_rank(agents[1])
    job.wait(2.0)
    job.crash(agents[2])
    job.wait(5.0)
    assert job.record.failures == 2
    before = job.record.number
    job.add_agent(2)  # its new pod makes the job larger: no failure
    job.wait(5.0)
    assert job.record.number != before
    assert job.record.failures == 2
    job.start_coordinator(term=2)  # it has no ledger, and asks the agents
    job.wait(1.0)
    job.fail_rank(agents[0])
    job.wait(5.0)
    assert job.record.failures == 3


def test_a_restarted_coordinator_knows_what_the_ranks_reported_to_its_predecessor() -> None:
    job, agents = start_job(script=("train.py",), progress_timeout_seconds=5)
    job.start_coordinator(term=2)
    job.wait(1.0)
    current = job.core.state.current
    assert current is not None
    assert not current.non_reporting
    assert {restored.step for restored in current.restored.values()} == {0}
    assert job.core.state.resumed == [(GenerationNumber(1, 1), 0)]
    job.hang(agents[1])
    job.wait(8.0)
    assert job.core.state.recoveries.records()[-1].cause == "hang"


def test_a_restarted_coordinator_forms_a_generation_without_missing_members() -> None:
    job, agents = start_job()
    agents[1].alive = False
    job.start_coordinator(term=2)
    job.wait(1.5)
    assert job.core.state.current is None
    job.wait(1.5)
    assert job.indices == [0, 2]
    assert job.record.number.term == 2


def restart_in_place(job: Job) -> None:
    """End the process of the coordinator; the next one finds what it kept."""
    job.desired = handed_over(job.core.state)
    job.start_coordinator()
    job.wait(1.0)


def test_a_restarted_container_goes_on_counting_what_was_lost() -> None:
    """A kill of the coordinator between two losses hid the smaller one of them."""
    job, agents = start_job(strategy="fsdp", steps=5000)
    lost = []
    for index in (2, 1):
        at = job.step
        job.crash(agents[index])
        job.wait(5.0)
        lost.append(at - job.core.state.resumed[-1][1])
        begun = len(job.begun)
        restart_in_place(job)
        assert len(job.begun) == begun
        ledger = job.core.state.account.ledger()
        assert ledger.restarts["infrastructure"] == len(lost)
        assert ledger.lost_steps == sum(lost)
        job.add_agent(index)
        job.wait(5.0)
    assert sum(lost) > 0


def test_a_generation_is_handed_over_as_accounted_for_once_rank_0_has_restored() -> None:
    job, _ = start_job()
    current = job.core.state.current
    assert current is not None
    for is_restored in (True, False):
        known = handed_over(job.core.state).last_known
        assert known is not None
        assert known.generation is not None
        assert (current.number > known.generation) is not is_restored
        current.restored.pop(0, None)


def test_a_loss_is_counted_once_though_the_coordinator_dies_before_it_is_reported() -> None:
    job, agents = start_job(strategy="fsdp", steps=5000)
    at, before = job.step, len(job.begun)
    job.crash(agents[2])
    while len(job.begun) == before:
        job.wait(0.01)
    restart_in_place(job)
    job.wait(5.0)
    assert job.core.state.account.ledger().lost_steps == at - job.core.state.resumed[-1][1] > 0


@pytest.mark.parametrize("is_known", [True, False])
def test_a_successor_counts_what_a_generation_lost_that_has_not_restored_yet(
    is_known: bool,
) -> None:
    """Nobody can have counted it, whether or not the operator knows that generation."""
    job, agents = start_job(strategy="fsdp", steps=5000)
    at, before, first = job.step, len(job.begun), job.record.number
    agents[0].hangs_at_start = True
    job.crash(agents[2])
    while len(job.begun) == before:
        job.wait(0.01)
    number = job.record.number
    known = LastKnown(
        step=at,
        time=1_000_000.0 + job.now,
        world_size=3,
        generation=number if is_known else first,
    )
    job.desired = job.desired.model_copy(update={"last_known": known})
    job.start_coordinator(term=2)
    job.wait(5.0)
    job.send(agents[0], Restored(generation=number, rank=0, step=job.resumed[number]))
    assert job.record.number == number
    assert job.core.state.account.ledger().lost_steps == at - job.resumed[number] > 0
    records = job.core.state.recoveries.records()
    assert [one.lost_steps for one in records] == ([] if is_known else [at - job.resumed[number]])


def test_a_restarted_container_knows_the_newest_spec() -> None:
    job, _agents = start_job()
    job.update_desired(replicas=2)
    restart_in_place(job)
    assert job.core.state.desired.replicas == 2


def test_members_that_come_back_one_after_the_other_keep_their_generation() -> None:
    job, agents = start_job()
    for agent in agents:
        agent.keeps_old_connection = True
    job.start_coordinator(term=2)
    for agent in agents:
        job.wait(1.4)
        agent.keeps_old_connection = False
    job.wait(0.1)
    assert job.record.number == GenerationNumber(1, 1)
    assert len(job.begun) == 1


def test_a_member_with_heartbeats_that_never_sends_a_hello_is_lost() -> None:
    job, agents = start_job(steps=10_000)
    agents[1].keeps_old_connection = True
    job.start_coordinator(term=2)
    job.wait(10.0)
    assert job.core.state.current is None
    job.wait(4.0)
    assert job.indices == [0, 2]


def test_a_restarted_container_of_the_same_term_never_reuses_a_number() -> None:
    job, agents = start_job()
    job.start_coordinator()
    job.wait(0.5)
    job.crash(agents[0])
    job.wait(0.5)
    assert job.record.number.n > 1


def test_the_newest_desired_is_learnt_from_the_agents() -> None:
    job, agents = start_job()
    job.update_desired(replicas=2)
    job.wait(1.0)
    job.desired = make_desired(replicas=3)
    job.start_coordinator(term=2)
    job.wait(1.0)
    assert job.core.state.desired.replicas == 2
    assert agents[2].exit_code == 0


def test_a_coordinator_of_a_lower_term_is_refused_by_what_agents_have_seen() -> None:
    job, agents = start_job()
    job.start_coordinator(term=3)
    job.wait(1.0)
    job.crash(agents[0])
    job.wait(1.0)
    job.start_coordinator(term=2)
    effects = job.core.on_message(agents[1].state.hello(), agents[1].name, job.now)
    assert [type(effect.message) for effect in effects if isinstance(effect, Send)] == [Refused]
    job.wait(5.0)
    assert job.core.state.current is None


def test_a_lost_member_that_returns_kills_its_ranks_and_joins_anew() -> None:
    job, agents = start_job()
    job.cut_off(agents[1])
    job.wait(3.0)
    assert job.indices == [0, 2]
    agents[1].reachable = True
    job.wait(1.5)
    assert job.indices == [0, 2, 1]
    assert agents[1].state.record == job.record


def test_a_report_of_a_fenced_member_changes_nothing() -> None:
    job, agents = start_job()
    old = agents[1].state.record
    assert isinstance(old, GenerationRecord)
    job.cut_off(agents[1])
    job.wait(3.0)
    before = make_status(job.core.state, 1)
    for number in (old.number, job.record.number):
        report = Progress(generation=number, rank=1, step=10_000, time=0.0)
        job.core.on_message(report, agents[1].name, job.now)
    assert make_status(job.core.state, 1) == before


def test_lost_steps_and_down_time_are_recorded() -> None:
    job, agents = start_job(strategy="fsdp")
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
    assert (recovery.world_size_before, recovery.world_size_after) == (3, 2)
    assert job.core.state.account.ledger().lost_steps == at - 10


def test_ranks_that_do_not_agree_on_a_decision_are_ended_by_force() -> None:
    job, agents = start_job()
    for agent in agents:
        agent.ranks_run = False  # they hang
    job.ask_to_leave(agents[2])
    job.wait(62.0)
    assert job.indices == [0, 1]


def test_a_volume_that_refuses_reservations_is_named_and_tried_again() -> None:
    job = Job()
    job.core.on_reservation_failed("Permission denied (/volume/gpt)", job.now)
    assert "Permission denied" in make_status(job.core.state, 1).message


def test_a_replaced_member_that_returns_is_released() -> None:
    job, agents = start_job()
    job.cut_off(agents[1])
    job.wait(3.0)
    job.add_agent(1)
    job.wait(1.0)
    number = job.record.number
    agents[1].reachable = True
    job.wait(3.0)
    assert agents[1].exit_code == 0
    assert job.record.number == number


def test_connections_between_ranks_that_never_work_are_tried_ever_less_often() -> None:
    job, agents = start_job(max_restarts=0, strategy="fsdp")
    job.save_every = 1000
    started = job.now
    for _ in range(6):
        job.rank_ends(agents[0], "peer", 75)
        while not agents[0].ranks_run:
            job.wait(0.1)
    assert job.outcome is None
    assert job.now - started > 15.0


def test_a_coordinator_that_starts_while_suspending_waits_for_the_ranks_to_save() -> None:
    job, agents = start_job()
    job.update_desired(suspend=True)
    for agent in agents:
        agent.reachable = False
    job.start_coordinator(term=2)
    job.wait(0.5)
    too_early = job.outcome
    assert too_early is None
    for agent in agents:
        agent.reachable = True
    job.wait(1.0)
    assert job.outcome is not None
    assert job.saved_step == agents[0].step


TRAINED = LastKnown(step=10, time=1_000_000.0, world_size=3)


def test_a_new_coordinator_of_a_job_to_suspend_waits_for_workers_that_find_it_late() -> None:
    """They may be parked with a state that the volume does not take: its history does not grow."""
    job, agents = start_job(steps=10_000)
    for agent in agents:
        agent.reachable = False
    job.save_every = 10_000
    job.update_desired(suspend=True, last_known=TRAINED)
    job.start_coordinator(term=2)
    job.wait(RETURN_TO_SAVE_SECONDS - 5.0)
    too_early = job.outcome
    assert too_early is None
    for agent in agents[:2]:
        agent.reachable = True
    job.wait(3.0)
    assert job.outcome is not None, "the third is lost, as after any other start"
    assert job.saved_step == agents[0].step


def test_a_new_coordinator_of_a_job_to_suspend_waits_for_nobody_for_ever() -> None:
    job = Job(make_desired(suspend=True, last_known=TRAINED), term=2)
    job.wait(RETURN_TO_SAVE_SECONDS + 1.0)
    assert job.outcome is not None
    assert job.outcome.result == "suspended"


def test_skipped_updates_are_rare_events_and_the_error_is_not_tried_again() -> None:
    job, agents = start_job(steps=10_000)
    rank0 = next(agent for agent in agents if agent.name == job.record.members[0].member)
    report = Progress(generation=job.record.number, rank=0, step=job.step + 1, time=0.0)
    for skipped in range(1, 5):
        job.send(
            rank0, report.model_copy(update={"step": report.step + skipped, "skipped": skipped})
        )
    (event,) = [
        event for event in job.core.state.journal.events() if event.reason == "NonFiniteLoss"
    ]
    assert event.type == "Warning"
    assert event.message.startswith("1 updates of generation 1.1 were left out")
    job.fail_rank(rank0, exit_code=NonFiniteError.exit_code)
    job.wait(1.0)
    assert job.outcome is not None
    assert job.outcome.result == "failed"
    assert "an error that would come again" in job.outcome.message


def test_the_message_says_why_a_wanted_worker_is_missing() -> None:
    job, _agents = start_job(workers=2)
    job.wait(5.0)
    message = make_status(job.core.state, 1).message
    assert message.endswith("on 2 workers of 3 wanted (gpt-w2 has not connected yet)")


def test_a_report_of_another_generation_has_nothing_decided_however_many_there_are() -> None:
    job = Job(make_desired(start_grace_seconds=3.0))
    agents = [job.add_agent(0), job.add_agent(1)]
    stale = Progress(generation=GenerationNumber(9, 9), rank=0, step=1, time=1.0)
    job.wait(2.9)
    due = job.now + 0.2
    assert job.core.on_message(stale, agents[0].name, due) == []
    assert job.core.state.current is None
    assert job.core.tick(due)
