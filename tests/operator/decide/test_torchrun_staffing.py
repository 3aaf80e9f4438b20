"""The policy of launcher torchrun, as sequences in virtual time. Only the pods show the state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.decide.plan import (
    MESSAGE_LIMIT,
    CreateStore,
    CreateWorker,
    DeletePod,
    EnsureService,
)
from regroup_operator.decide.planner import plan
from regroup_operator.observe.observed import Pod
from regroup_trainer.protocol.exit_codes import WAITS_IN_VAIN
from tests.support.operator_simulation import Simulation, make_torchrun_spec, names_of


@pytest.fixture
def job() -> Simulation:
    """A job whose three workers run."""
    simulation = Simulation(spec=make_torchrun_spec())
    simulation.run_rounds(4)
    assert names_of(simulation) == ["gpt-w0-1", "gpt-w1-1", "gpt-w2-1"]
    return simulation


def succeed(simulation: Simulation, *pods: Pod) -> None:
    for pod in pods:
        simulation.pods[pod.name] = replace(
            pod, phase="Succeeded", exit_code=0, ended=simulation.now.isoformat()
        )


def test_the_store_comes_first_and_workers_when_it_runs() -> None:
    simulation = Simulation(spec=make_torchrun_spec())
    what = simulation.round()
    assert what.status.coordinator_term == 1
    assert [type(action) for action in what.actions[-2:]] == [EnsureService, CreateStore]
    assert not [action for action in simulation.round().actions if isinstance(action, CreateWorker)]
    simulation.run_pods()
    made = [action for action in simulation.round().actions if isinstance(action, CreateWorker)]
    assert [action.index for action in made] == [0, 1, 2]


def test_the_pods_alone_show_that_it_trains(job: Simulation) -> None:
    assert job.status.phase == "Running"
    assert (job.status.ready_replicas, job.status.world_size) == (3, 3)
    assert job.status.rendezvous_generation == "1.0"
    assert job.status.holds("Ready")
    assert "torchrun runs 3 workers" in job.status.message
    checkpointed = job.status.condition("Checkpointed")
    assert checkpointed is not None
    assert checkpointed.reason == "NotManaged"
    assert not job.round().follow
    assert job.round().actions == ()


def test_ranks_of_several_processes_a_worker_are_counted() -> None:
    simulation = Simulation(spec=make_torchrun_spec(nprocPerNode=2))
    simulation.run_rounds(4)
    assert (simulation.status.ready_replicas, simulation.status.world_size) == (3, 6)


def test_a_killed_worker_is_replaced_and_counted_once(job: Simulation) -> None:
    del job.pods["gpt-w1-1"]
    what = job.round()
    assert [action.index for action in what.actions if isinstance(action, CreateWorker)] == [1]
    job.run_rounds(3)
    assert names_of(job) == ["gpt-w0-1", "gpt-w1-2", "gpt-w2-1"]
    assert (job.status.restarts.infrastructure, job.status.restarts.application) == (1, 0)
    assert job.status.coordinator_term == 1, "the others keep their store"


def test_a_worker_whose_program_failed_is_replaced_and_counted_against_the_program(
    job: Simulation,
) -> None:
    job.fail(job.workers()[0], exit_code=1, exit_message="ModuleNotFoundError")
    job.run_rounds(2)
    assert (job.status.restarts.infrastructure, job.status.restarts.application) == (0, 1)
    assert job.status.restart_count == 1


def test_below_the_fewest_workers_it_recovers_and_shows_what_it_waits_for(job: Simulation) -> None:
    for name in ("gpt-w1-1", "gpt-w2-1"):
        job.pods[name] = replace(job.pods[name], terminating=True)
    job.round()
    assert job.status.phase == "Recovering"
    assert job.status.message == "waiting for workers: 1 run, at least 2 are needed"


@pytest.mark.parametrize("how", ["gone", "failed"])
def test_without_its_store_the_next_attempt_begins_with_new_workers(
    job: Simulation, how: str
) -> None:
    if how == "gone":
        del job.pods["gpt-s1"]
    else:
        job.fail(job.pods["gpt-s1"])
    what = job.round()
    assert what.status.coordinator_term == 2
    assert EnsureService(2) in what.actions
    assert {action.pod.name for action in what.actions if isinstance(action, DeletePod)} >= {
        "gpt-w0-1",
        "gpt-w1-1",
        "gpt-w2-1",
    }
    job.run_rounds(5)
    assert names_of(job) == ["gpt-w0-2", "gpt-w1-2", "gpt-w2-2"]
    assert job.status.phase == "Running"
    assert job.status.pod_failures == (how == "failed"), "another one would have to wait"
    assert job.status.restart_count == job.status.restarts.infrastructure == 1


def test_a_store_that_is_refused_begins_no_further_attempt_and_counts_no_further_loss(
    job: Simulation,
) -> None:
    del job.pods["gpt-s1"]
    job.round(crash_after=0)
    assert (job.status.coordinator_term, job.status.restarts.infrastructure) == (2, 1)
    what = plan(job.job(), replace(job.observed(), unmade_term=2), job.now)
    assert [action.term for action in what.actions if isinstance(action, CreateStore)] == [2]
    assert (what.status.coordinator_term, what.status.restarts.infrastructure) == (2, 1)
    assert what.status.recoveries == job.status.recoveries
    assert "AttemptLost" not in [event.reason for event in what.events]


def test_an_operator_that_dies_before_it_makes_the_store_counts_the_loss_once(
    job: Simulation,
) -> None:
    """Its successor does not know whether the store was made, and takes the number after."""
    del job.pods["gpt-s1"]
    assert [event.reason for event in job.round(crash_after=0).events].count("AttemptLost") == 1
    what = job.round()
    assert "AttemptLost" not in [event.reason for event in what.events]
    job.run_rounds(5)
    assert names_of(job) == ["gpt-w0-2", "gpt-w1-2", "gpt-w2-2"]
    assert job.status.restart_count == job.status.restarts.infrastructure == 1


def test_a_store_that_keeps_failing_is_made_ever_less_often_and_fails_the_job_in_the_end() -> None:
    simulation = Simulation(
        spec=make_torchrun_spec(restartPolicy={"maxRestarts": 5, "backoffSeconds": 10})
    )
    for _ in range(60):
        simulation.round()
        for pod in list(simulation.pods.values()):
            if pod.role == "store" and pod.phase == "Pending":
                simulation.fail(pod, exit_message="ModuleNotFoundError: No module named 'torch'")
        simulation.tick(2)
    assert simulation.status.coordinator_term <= 6, "10, 20, 40, 80 s of pauses after the third"
    for _ in range(300):
        simulation.round()
        for pod in list(simulation.pods.values()):
            if pod.role == "store" and pod.phase == "Pending":
                simulation.fail(pod)
        simulation.tick(2)
    assert simulation.status.phase == "Failed"
    assert "6 pods in a row failed" in simulation.status.message


def test_a_store_on_a_node_that_is_not_ready_is_given_up(job: Simulation) -> None:
    observed = job.observed()
    node = job.pods["gpt-s1"].node
    bad = replace(job._node(node), ready=False, not_ready_seconds=10)
    actions = plan(job.job(), replace(observed, nodes={node: bad}), job.now).actions
    assert any(isinstance(action, CreateStore) for action in actions)


def test_workers_that_all_end_well_complete_the_job_and_the_store_goes(job: Simulation) -> None:
    succeed(job, *job.workers())
    what = job.round()
    assert what.status.phase == "Succeeded"
    assert what.status.holds("Complete")
    job.run_rounds(8)
    assert "gpt-s1" not in job.pods
    assert len(job.pods) == 3, "their logs stay"


def test_while_others_still_run_no_worker_is_replaced_and_the_attempt_goes_on(
    job: Simulation,
) -> None:
    first, second, third = job.workers()
    succeed(job, first)
    del job.pods[second.name]
    what = job.round()
    assert not [action for action in what.actions if isinstance(action, CreateWorker)]
    assert what.status.phase == "Running"
    succeed(job, third)
    job.round()
    assert job.status.phase == "Succeeded", "two are enough for a process group"


def test_too_few_that_ended_well_begin_the_next_attempt(job: Simulation) -> None:
    first, second, third = job.workers()
    succeed(job, first)
    job.fail(second, exit_code=137)
    job.fail(third, exit_code=137)
    job.round()
    assert job.status.coordinator_term == 2
    job.run_rounds(5)
    assert len(job.workers()) == 3
    assert job.status.phase == "Running"


def test_a_program_that_torchrun_gave_up_on_fails_the_job(job: Simulation) -> None:
    message = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n=====\ntrain.py FAILED"
    )
    job.fail(job.workers()[0], exit_code=1, exit_message=message)
    job.round()
    assert job.status.phase == "Failed"
    assert (
        job.status.message
        == "torchrun gave up (spec.restartPolicy.maxRestarts=10): see the log of gpt-w0-1"
    )


def test_a_program_that_cannot_start_on_any_worker_fails_the_job(job: Simulation) -> None:
    message = "rank 0 failed with exit code 1; it cannot start:\nModuleNotFoundError: 'mine'"
    job.fail(job.workers()[0], exit_code=1, exit_message=message)
    job.round()
    assert not job.status.holds("Failed"), "it may be the matter of one node"
    for worker in [worker for worker in job.workers() if worker.alive]:
        job.fail(worker, exit_code=1, exit_message=message)
    job.round()
    assert job.status.phase == "Failed"
    assert job.status.message.startswith(message)
    assert [c.reason for c in job.status.conditions if c.type == "Failed"] == ["FailsAtStart"]


@pytest.mark.parametrize("term", [1, 2])
def test_one_node_proves_nothing_while_others_have_yet_to_start_nor_in_a_later_attempt(
    job: Simulation, term: int
) -> None:
    message = "rank 0 failed with exit code 1; it cannot start:\nModuleNotFoundError: 'mine'"
    first, *others = job.workers()
    job.fail(first, exit_code=1, exit_message=message)
    for worker in others:
        if term == 1:
            job.pods[worker.name] = replace(job.pods[worker.name], phase="Pending")
        else:
            job.fail(worker, exit_code=1, exit_message=message)
    for pod in list(job.pods.values()):
        job.pods[pod.name] = replace(pod, term=term)
    job.status = job.status.model_copy(update={"coordinator_term": term})
    job.round()
    assert not job.status.holds("Failed")


def test_restarts_that_were_spent_on_lost_peers_do_not_fail_the_job(job: Simulation) -> None:
    del job.pods["gpt-w1-1"]
    job.run_rounds(3)
    job.fail(job.workers()[0], exit_code=1, exit_message="ChildFailedError")
    job.run_rounds(3)
    assert job.status.phase == "Running"
    assert len(job.workers()) == 3


FAILED = "rank 1 failed with exit code 1:\nTraceback ...\nValueError: a bug"


def test_a_rank_that_failed_after_others_ended_well_begins_the_next_attempt(
    job: Simulation,
) -> None:
    first, second, third = job.workers()
    succeed(job, first, second)
    job.fail(third, exit_code=1, exit_message=FAILED)
    job.round()
    assert job.status.phase != "Succeeded", "its work is missing"
    assert job.status.coordinator_term == 2
    assert "ValueError: a bug" in job.status.recoveries[-1].message
    assert job.status.restarts.application == 1


def test_a_store_that_saw_workers_wait_in_vain_ends_the_attempt(job: Simulation) -> None:
    first, second, third = job.workers()
    succeed(job, first, second)
    job.fail(third, exit_code=1, exit_message="RendezvousConnectionError")
    job.pods[third.name] = replace(job.pods[third.name], ended=job.now.isoformat())
    job.round()
    assert job.status.phase == "Recovering", "the end of the store may come later"
    assert job.status.coordinator_term == 1
    job.fail(job.pods["gpt-s1"], exit_code=WAITS_IN_VAIN)
    job.round()
    assert job.status.coordinator_term == 2
    assert (job.status.restarts.application, job.status.pod_failures) == (1, 2)


def test_a_worker_that_came_too_late_does_not_undo_the_work_of_the_others(job: Simulation) -> None:
    first, second, third = job.workers()
    succeed(job, first, second)
    job.fail(third, exit_code=1, exit_message="RendezvousClosedError")
    job.pods[third.name] = replace(job.pods[third.name], ended=job.now.isoformat())
    job.round()
    job.tick(11)
    job.round()
    assert job.status.phase == "Succeeded"


def test_a_rendezvous_that_an_agent_has_closed_is_followed_by_the_next_attempt(
    job: Simulation,
) -> None:
    for worker in job.workers():
        job.fail(worker, exit_code=1, exit_message="torch...RendezvousClosedError")
    job.round()
    job.tick(60)  # the back-off
    job.round()
    assert job.status.coordinator_term == 2, "there, nobody would ever meet again"
    assert "has closed the rendezvous" in job.status.recoveries[-1].message
    job.run_rounds(5)
    assert (job.status.phase, job.status.world_size) == ("Running", 3)


def test_attempts_that_end_so_are_begun_no_more_often_than_the_budget_says() -> None:
    budget = {"maxRestarts": 2, "backoffSeconds": 1}
    simulation = Simulation(spec=make_torchrun_spec(restartPolicy=budget))
    for _ in range(3):
        simulation.run_rounds(6)
        first, second, third = simulation.workers()
        succeed(simulation, first, second)
        simulation.fail(third, exit_code=1, exit_message=FAILED)
        simulation.round()
        simulation.tick(60)
    assert simulation.status.phase == "Failed"
    assert simulation.status.message == f"{FAILED}\n(spec.restartPolicy.maxRestarts=2)"


def test_the_message_of_a_failed_job_begins_with_what_the_rank_wrote(job: Simulation) -> None:
    sentence = "rank 0 failed with exit code 3; torchrun gives up after 10 restarts:"
    trace = "\n".join(f"  frame {number}" for number in range(300))
    job.fail(job.workers()[0], exit_code=1, exit_message=f"{sentence}\n{trace}\nValueError: a bug")
    job.round()
    assert job.status.phase == "Failed"
    assert job.status.message.startswith(sentence)
    assert "ValueError: a bug\ntorchrun gave up" in job.status.message
    assert len(job.status.message) <= MESSAGE_LIMIT


def test_a_scaled_job_keeps_its_attempt_within_its_bounds(job: Simulation) -> None:
    job.spec, job.generation = make_torchrun_spec(replicas=2), 2
    job.run_rounds(4)
    assert names_of(job) == ["gpt-w0-1", "gpt-w1-1"]
    assert job.status.coordinator_term == 1
    assert job.status.restart_count == 0


def test_other_bounds_begin_the_next_attempt_since_torchrun_cannot_change_them() -> None:
    fixed: dict[str, Any] = {"elasticPolicy": None, "replicas": 2}
    simulation = Simulation(spec=make_torchrun_spec(**fixed))
    simulation.run_rounds(5)
    simulation.spec, simulation.generation = make_torchrun_spec(**{**fixed, "replicas": 3}), 2
    simulation.run_rounds(6)
    assert names_of(simulation) == ["gpt-w0-2", "gpt-w1-2", "gpt-w2-2"]
    assert simulation.status.coordinator_term == 2
    assert (simulation.status.restarts.resize, simulation.status.restart_count) == (1, 0)


def test_pods_from_which_somebody_takes_their_annotations_begin_no_further_attempt(
    job: Simulation,
) -> None:
    for pod in job.workers():
        job.pods[pod.name] = replace(pod, nnodes="")
    assert job.round().actions == ()
    assert job.status.coordinator_term == 1


def test_suspending_gives_all_pods_back_and_resuming_begins_the_next_attempt(
    job: Simulation,
) -> None:
    job.spec, job.generation = make_torchrun_spec(suspend=True), 2
    job.run_rounds(3)
    assert job.pods == {}
    assert job.status.holds("Suspended")
    job.spec, job.generation = make_torchrun_spec(), 3
    job.run_rounds(5)
    assert job.status.phase == "Running"
    assert job.status.coordinator_term == 2
    assert job.status.restart_count == 0
