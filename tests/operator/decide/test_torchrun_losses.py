"""Why the pods of a torchrun job were lost, as sequences in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regroup_operator.observe.observed import Pod
from tests.support.operator_simulation import Simulation, make_torchrun_spec, names_of


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
