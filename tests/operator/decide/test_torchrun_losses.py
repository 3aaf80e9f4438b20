"""Why the pods of a torchrun job were lost, as sequences in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from regroup_operator.decide.planner import plan
from regroup_operator.observe.observed import Pod
from tests.support import operator_simulation
from tests.support.operator_simulation import (
    Simulation,
    make_invalid_job,
    make_torchrun_spec,
    names_of,
)


@pytest.fixture
def job() -> Simulation:
    """A job whose three workers run."""
    simulation = Simulation(spec=make_torchrun_spec())
    simulation.run_rounds(4)
    return simulation


def evict(simulation: Simulation, pod: Pod) -> None:
    """What the eviction API does: the pod is asked to end, and gone a moment later."""
    simulation.pods[pod.name] = replace(
        pod, terminating=True, true_conditions=frozenset({"DisruptionTarget"})
    )


def test_an_evicted_worker_counts_as_preempted_and_is_reported(job: Simulation) -> None:
    evict(job, job.workers()[1])
    job.run_rounds(3)
    assert names_of(job) == ["gpt-w0-1", "gpt-w1-2", "gpt-w2-1"]
    assert job.status.restarts.model_dump() == dict.fromkeys(
        job.status.restarts.model_dump(), 0
    ) | {"preemption": 1}
    (recovery,) = job.status.recoveries
    assert (recovery.cause, recovery.restored_from, recovery.pod, recovery.node) == (
        "preemption",
        "Script",
        "gpt-w1-1",
        "n2",
    )
    assert (recovery.generation, recovery.world_size_before) == ("1.0", 3)


def test_a_worker_that_the_kubelet_evicted_counts_as_preempted(job: Simulation) -> None:
    job.fail(job.workers()[1], exit_code=1, reason="Evicted")
    job.run_rounds(2)
    assert (job.status.restarts.preemption, job.status.restart_count) == (1, 1)
    assert job.status.pod_failures == 0


def test_an_evicted_store_takes_its_attempt_along_and_counts_as_preempted(job: Simulation) -> None:
    evict(job, job.pods["gpt-s1"])
    job.run_rounds(5)
    assert names_of(job) == ["gpt-w0-2", "gpt-w1-2", "gpt-w2-2"]
    assert (job.status.restarts.preemption, job.status.restart_count) == (1, 1)
    assert [recovery.generation for recovery in job.status.recoveries] == ["2.0"]


def test_a_worker_out_of_memory_counts_against_the_program(job: Simulation) -> None:
    job.fail(job.workers()[0], exit_code=137, exit_reason="OOMKilled")
    job.run_rounds(2)
    assert (job.status.restarts.application, job.status.pod_failures) == (1, 1)
    assert job.status.recoveries[0].exit_code == 137


def test_a_worker_on_a_node_that_is_not_ready_counts_as_infrastructure(job: Simulation) -> None:
    victim = job.workers()[1]
    job.unready_nodes.add(victim.node)
    job.dead_nodes.add(victim.node)
    job.run_rounds(4)
    assert (job.status.restarts.infrastructure, job.status.restart_count) == (1, 1)
    assert job.pods[victim.name].terminating, "its kubelet cannot end it"
    assert [pod.index for pod in job.workers()] == [0, 1, 2]
    assert victim.node not in {pod.node for pod in job.workers()}


def test_two_workers_that_are_lost_at_once_are_counted_one_by_one_and_reported_together(
    job: Simulation,
) -> None:
    first, second, _ = job.workers()
    job.fail(first, exit_code=1, exit_message="ValueError: no")
    evict(job, second)
    job.run_rounds(3)
    assert (job.status.restarts.application, job.status.restarts.preemption) == (1, 1)
    (recovery,) = job.status.recoveries
    assert recovery.cause == "application"
    assert recovery.message == (
        "worker pod gpt-w0-1 on node n1 ended with exit code 1 (program failed): ValueError: no; "
        "worker pod gpt-w1-1 on node n2 is being deleted (a drain, an eviction, or by hand)"
    )


def test_a_worker_whose_pod_is_gone_is_reported_with_its_node(job: Simulation) -> None:
    del job.pods[job.workers()[1].name]
    job.run_rounds(2)
    (recovery,) = job.status.recoveries
    assert recovery.message == (
        "worker pod gpt-w1-1 on node n2 is gone (deleted by force, or with its node)"
    )


def test_a_pod_that_is_deleted_by_force_counts_the_same_while_it_is_still_seen(
    job: Simulation,
) -> None:
    victim = job.workers()[1]
    job.pods[victim.name] = replace(victim, terminating=True, is_forced=True)
    job.run_rounds(2)
    (recovery,) = job.status.recoveries
    assert (recovery.cause, job.status.restarts.infrastructure) == ("infrastructure", 1)
    assert recovery.message == (
        "worker pod gpt-w1-1 on node n2 is gone (deleted by force, or with its node)"
    )


def test_an_evicted_pod_that_has_no_time_to_end_counts_as_preempted(job: Simulation) -> None:
    victim = job.workers()[1]
    evict(job, replace(victim, is_forced=True))
    job.run_rounds(2)
    assert job.status.restarts.preemption == 1


@pytest.mark.parametrize("done", [0, 1, 2])
def test_an_operator_that_dies_after_writing_counts_a_loss_once(job: Simulation, done: int) -> None:
    job.fail(job.workers()[0], exit_code=1)
    job.round(crash_after=done)
    job.run_rounds(4)
    assert len(job.workers()) == 3
    assert (
        job.status.restarts.application,
        job.status.restart_count,
        len(job.status.recoveries),
    ) == (1, 1, 1)


REFUSED = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
WAITED_IN_VAIN = (
    "torch.distributed.DistStoreError: wait timeout after 60000ms, keys: "
    "/torch.rendezvous.gpt-1.1/torchelastic/role_info/0, "
    "/torch.rendezvous.gpt-1.1/torchelastic/role_info/1"
)


def lose_peer_while_meeting(job: Simulation) -> None:
    """A rank was killed, which torchrun mends itself, and while its agent meets the others again,
    the pod of one of them is gone. Its replacement waits until the agent fails.
    """
    del job.pods["gpt-w1-1"]
    job.run_rounds(30)
    assert names_of(job) == ["gpt-w0-1", "gpt-w1-2"]
    job.fail(job.workers()[0], exit_code=1, exit_message=WAITED_IN_VAIN)


@pytest.fixture
def pair() -> Simulation:
    """A job whose two workers run."""
    bounds = {"minReplicas": 2, "maxReplicas": 2}
    simulation = Simulation(spec=make_torchrun_spec(replicas=2, elasticPolicy=bounds))
    simulation.run_rounds(4)
    return simulation


def refuse_all(job: Simulation) -> None:
    """What runs wants to join, and is refused."""
    for worker in job.workers():
        if worker.phase == "Running":
            job.fail(worker, exit_code=1, exit_message=REFUSED)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_workers_that_are_refused_are_not_the_programs_failures(
    pair: Simulation, rounds: int
) -> None:
    lose_peer_while_meeting(pair)
    pair.run_rounds(rounds)  # the kubelets of two nodes report independently
    for _ in range(5):
        refuse_all(pair)
        pair.round()
        if pair.status.coordinator_term == 2:
            break
        pair.run_pods()
        pair.tick(2)
    pair.run_rounds(4)
    assert (pair.status.phase, pair.status.coordinator_term) == ("Running", 2)
    restarts = pair.status.restarts
    assert (restarts.application, restarts.infrastructure) == (0, 2), "the pod and the agent"
    assert pair.status.pod_failures == 0
    assert "has closed the rendezvous" in pair.status.recoveries[-1].message


def test_nobody_is_sent_where_one_was_refused(job: Simulation) -> None:
    first, second, _ = job.workers()
    job.fail(first, exit_code=1, exit_message=REFUSED)
    job.run_rounds(3)
    job.fail(second, exit_code=1, exit_message=REFUSED)
    job.run_rounds(3)
    assert names_of(job) == ["gpt-w2-1"], "it may end well"
    assert job.status.coordinator_term == 1
    refuse_all(job)
    job.run_rounds(4)
    assert (job.status.coordinator_term, len(job.workers())) == (2, 3)
    assert job.status.restarts.application == 0


def test_an_agent_whose_program_failed_and_closed_the_rendezvous_counts_once(
    job: Simulation,
) -> None:
    first, *_ = job.workers()
    job.fail(first, exit_code=1, exit_message="ModuleNotFoundError: no")
    refuse_all(job)
    job.run_rounds(8)
    job.tick(60)  # the back-off
    job.run_rounds(5)
    restarts = job.status.restarts
    assert (job.status.phase, job.status.coordinator_term) == ("Running", 2)
    assert (restarts.application, restarts.infrastructure) == (1, 0)
    recovery = job.status.recoveries[-1]
    assert (recovery.cause, recovery.exit_code) == ("application", 1), "what closed it"


# --- more workers than the status shows -----------------------------------------------------------


def large_job(workers: int = 100) -> Simulation:
    """A job whose workers run, each on a node of its own."""
    bounds = {"minReplicas": 2, "maxReplicas": workers}
    simulation = Simulation(spec=make_torchrun_spec(replicas=workers, elasticPolicy=bounds))
    simulation.run_rounds(5)
    assert simulation.status.ready_replicas == workers
    return simulation


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for a hundred workers and some replacements."""
    monkeypatch.setattr(operator_simulation, "NODES", tuple(f"n{n}" for n in range(1, 121)))


def delete_by_force(simulation: Simulation, pod: Pod) -> None:
    """It leaves no trace."""
    del simulation.pods[pod.name]


def run_out_of_memory(simulation: Simulation, pod: Pod) -> None:
    simulation.fail(pod, exit_code=137, exit_reason="OOMKilled")


Lose = Callable[[Simulation, Pod], None]
CAUSES: dict[Lose, str] = {
    evict: "preemption",
    delete_by_force: "infrastructure",
    run_out_of_memory: "application",
}
LOSSES = pytest.mark.parametrize("lose", CAUSES, ids=lambda lose: lose.__name__)


def worker(simulation: Simulation, index: int) -> Pod:
    (pod,) = (pod for pod in simulation.workers() if pod.index == index)
    return pod


def assert_counted_once(simulation: Simulation, lose: Lose) -> None:
    """One loss was, of the right cause, and a recovery reports it."""
    counted = {cause: n for cause, n in simulation.status.restarts.model_dump().items() if n}
    assert counted == {CAUSES[lose]: 1}
    assert simulation.status.restart_count == len(simulation.status.recoveries) == 1


@LOSSES
@pytest.mark.parametrize("index", [10, 63, 64, 99])
@pytest.mark.usefixtures("nodes")
def test_the_loss_of_a_worker_that_the_status_does_not_show_is_counted(
    index: int, lose: Lose
) -> None:
    job = large_job()
    victim = worker(job, index)
    lose(job, victim)
    job.run_rounds(4)
    assert len(job.workers()) == 100
    assert_counted_once(job, lose)
    assert job.status.recoveries[0].pod == victim.name


@LOSSES
@pytest.mark.parametrize("index", [10, 64])
@pytest.mark.usefixtures("nodes")
def test_a_loss_while_an_older_operator_was_replaced_is_counted(index: int, lose: Lose) -> None:
    job = large_job()
    job.status = job.status.model_copy(update={"running_workers": None})
    lose(job, worker(job, index))
    job.run_rounds(4)
    assert_counted_once(job, lose)


@pytest.mark.usefixtures("nodes")
def test_of_an_older_status_a_worker_that_was_yet_to_run_is_not_lost() -> None:
    job = large_job()
    delete_by_force(job, worker(job, 90))
    job.round(crash_after=0)  # its replacement is not made
    job.status = job.status.model_copy(update={"running_workers": None})
    job.run_rounds(4)
    assert len(job.workers()) == 100
    assert_counted_once(job, delete_by_force)


@pytest.mark.usefixtures("nodes")
def test_of_an_older_status_a_replacement_that_is_gone_is_no_second_end_of_the_former() -> None:
    job = large_job()
    run_out_of_memory(job, worker(job, 90))
    job.run_rounds(4)
    assert "gpt-w90-1" in job.pods, "kept for its log"
    job.status = job.status.model_copy(update={"running_workers": None})
    delete_by_force(job, worker(job, 90))
    job.run_rounds(4)
    restarts = job.status.restarts
    assert (restarts.application, restarts.infrastructure) == (1, 1)
    assert "the pod of worker 90 is gone" in job.status.recoveries[-1].message


def test_what_runs_is_remembered_as_ranges(job: Simulation) -> None:
    assert job.status.running_workers == {"0-2": 1}
    evict(job, job.workers()[1])
    job.run_rounds(4)
    assert job.status.running_workers == {"0": 1, "1": 2, "2": 1}


def test_the_most_workers_fit_into_the_status_whatever_their_incarnations(job: Simulation) -> None:
    bounds = {"minReplicas": 2, "maxReplicas": DEFAULT_MAX_WORKERS}
    job.spec = make_torchrun_spec(replicas=DEFAULT_MAX_WORKERS, elasticPolicy=bounds)
    first = job.pods.pop("gpt-w0-1")
    for index in range(DEFAULT_MAX_WORKERS):
        name = f"gpt-w{index}-{2**31 - 1 - index}"
        uid = f"4322f31b-0000-4000-8000-{index:012}"
        job.pods[name] = replace(first, name=name, uid=uid, index=index, nnodes="")
    del job.pods["gpt-w1-1"], job.pods["gpt-w2-1"]
    status = plan(job.job(), job.observed(), job.now).status
    assert len(status.running_workers or ()) == DEFAULT_MAX_WORKERS
    written = status.model_dump_json(by_alias=True, exclude_none=True)
    assert TrainingJobStatus.model_validate_json(written) == status
    assert len(written) < 128 * 1024


@pytest.mark.parametrize(
    "written",
    [{"0-999999999": 1}, {"2-0": 1, "": 1, "x": 7, "-1": 1}, {f"0-{n}": n for n in range(4096)}],
    ids=["endless", "no ranges", "overlapping"],
)
def test_ranges_that_somebody_else_wrote_cost_a_round_or_little_more(
    job: Simulation, written: dict[str, int]
) -> None:
    job.status = job.status.model_copy(update={"running_workers": written})
    job.run_rounds(2)
    assert job.status.running_workers == {"0-2": 1}
    assert job.status.phase == "Running"


def test_a_worker_on_a_lost_node_whose_pod_vanishes_is_counted_once(job: Simulation) -> None:
    victim = job.workers()[1]
    job.unready_nodes.add(victim.node)
    job.dead_nodes.add(victim.node)
    job.round()
    assert job.pods.pop(victim.name).terminating
    job.run_rounds(4)
    assert_counted_once(job, delete_by_force)


@LOSSES
def test_a_loss_while_the_spec_was_invalid_is_counted_once_it_is_valid(
    job: Simulation, lose: Lose
) -> None:
    lose(job, job.workers()[1])
    for _ in range(2):
        job.status = plan(make_invalid_job(job.job()), job.observed(), job.now).status
        job.tick(2)
    assert job.status.restart_count == 0
    job.tick(60)  # a back-off
    job.run_rounds(4)
    assert_counted_once(job, lose)


def test_a_second_pod_of_a_worker_is_no_loss_when_it_is_deleted(job: Simulation) -> None:
    first = job.workers()[1]
    job.pods["gpt-w1-9"] = replace(first, name="gpt-w1-9", uid="uid-late")
    job.run_rounds(4)
    assert names_of(job) == ["gpt-w0-1", "gpt-w1-1", "gpt-w2-1"]
    assert job.status.restart_count == 0


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from([0, 1, 62, 63, 64, 65, 98, 99]), max_size=3),
            st.sampled_from([evict, delete_by_force]),
            st.lists(st.integers(0, 3), max_size=3),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_wherever_operators_die_each_loss_of_a_worker_is_counted_once(
    course: list[tuple[set[int], Lose, list[int]]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator_simulation, "NODES", tuple(f"n{n}" for n in range(1, 121)))
        job, expected = large_job(), dict.fromkeys(("preemption", "infrastructure"), 0)
        for indexes, lose, deaths in course:
            for index in indexes:
                lose(job, worker(job, index))
                expected[CAUSES[lose]] += 1
            for actions in deaths:
                job.round(crash_after=actions)
                job.run_pods()
            job.run_rounds(5)
            assert len(job.workers()) == 100
        counted = job.status.restarts.model_dump()
        assert {cause: counted[cause] for cause in expected} == expected
