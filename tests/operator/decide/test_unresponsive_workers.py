"""Workers that run and do not reach their coordinator, in virtual time."""

from __future__ import annotations

from dataclasses import replace

from regroup_operator.decide.plan import REQUEUE_SECONDS, CreateWorker, DeletePod
from regroup_operator.decide.planner import plan
from regroup_operator.decide.unresponsive_workers import (
    NAMED_SECONDS,
    UNREACHED_SECONDS,
    UNRESPONSIVE_SECONDS,
)
from tests.support.operator_simulation import Simulation, make_spec, training


def with_unresponsive(*indices: int) -> Simulation:
    """A job of three workers; these show no life from now on."""
    simulation = training()
    for pod in simulation.workers():
        if pod.index in indices:
            simulation.no_contact_since[pod.uid] = simulation.now
    return simulation


def deleted(simulation: Simulation) -> list[str]:
    return [a.pod.name for a in simulation.round().actions if isinstance(a, DeletePod)]


def test_an_unresponsive_worker_is_named_after_ten_seconds_and_replaced_after_thirty() -> None:
    simulation = with_unresponsive(1)
    simulation.tick(NAMED_SECONDS - 1)
    assert "receives nothing" not in simulation.round().status.message
    simulation.tick(1)
    status = simulation.round().status
    degraded = status.condition("Degraded")
    assert degraded is not None
    for message in (status.message, degraded.message):
        assert (
            "worker pod gpt-w1-1 on node n2 runs, but its coordinator receives nothing" in message
        )
        assert "kubectl logs gpt-w1-1" in message
    simulation.tick(UNRESPONSIVE_SECONDS - NAMED_SECONDS - 1)
    assert deleted(simulation) == []
    simulation.tick(1)
    what = simulation.round()
    assert [a.pod.name for a in what.actions if isinstance(a, DeletePod)] == ["gpt-w1-1"]
    assert [a.index for a in what.actions if isinstance(a, CreateWorker)] == [1]
    assert "WorkerUnresponsive" in [event.reason for event in what.events]
    assert what.status.node_failures == {"n2": 1}, "its network may be broken"
    assert what.status.suspected_nodes == ()


def test_workers_from_which_a_webhook_took_their_variables_are_not_made_again_and_again() -> None:
    """None finds its coordinator or takes its address, and new ones would not either."""
    simulation = with_unresponsive(0, 1, 2)
    simulation.unreached = dict.fromkeys(simulation.no_contact_since, simulation.now)
    for pod in simulation.workers():
        simulation.pods[pod.name] = replace(pod, coordinator_address="", image="example/other:1")
    for _ in range(60):
        what = simulation.round()
        assert not [a for a in what.actions if isinstance(a, CreateWorker | DeletePod)]
        simulation.tick(2)


def with_another_address() -> Simulation:
    """A job whose Service was deleted and has another address now: no worker finds it."""
    simulation = with_unresponsive(0, 1, 2)
    simulation.service, simulation.address = None, "198.19.0.2"
    simulation.round()
    return simulation


def test_the_new_address_is_sent_to_workers_that_have_the_former_one_until_they_are_back() -> None:
    simulation = with_another_address()
    assert simulation.status.service_address == "198.19.0.1", "the next Service asks for it"
    assert simulation.round().requeue_after == REQUEUE_SECONDS
    assert simulation.addresses_sent == ["gpt-w0-1", "gpt-w1-1", "gpt-w2-1"]
    assert simulation.status.service_address == "198.19.0.2"
    simulation.no_contact_since.clear()
    simulation.round()
    assert len(simulation.addresses_sent) == 3
    assert simulation.status.phase == "Running"


def test_a_worker_that_does_not_take_the_new_address_is_replaced() -> None:
    simulation = with_another_address()
    worker = simulation.workers()[1]
    simulation.unreached[worker.uid] = simulation.now
    simulation.tick(UNREACHED_SECONDS - 1)
    assert deleted(simulation) == []
    simulation.tick(1)
    what = simulation.round()
    assert [a.pod.name for a in what.actions if isinstance(a, DeletePod)] == ["gpt-w1-1"]
    assert "it looks for the coordinator at 198.19.0.1, where it is no more" in str(what.events)
    assert what.status.suspected_nodes == ()


def test_rounds_come_when_an_unresponsive_worker_has_to_be_named_or_replaced() -> None:
    simulation = with_unresponsive(1)
    begun, rounds = simulation.now, 0
    while not deleted(simulation):
        simulation.tick(simulation.round().requeue_after or 0.0)
        rounds += 1
    assert (simulation.now - begun).total_seconds() == UNRESPONSIVE_SECONDS
    assert rounds < 6


def test_nothing_is_replaced_while_no_worker_is_in_contact() -> None:
    simulation = with_unresponsive(0, 1, 2)
    simulation.tick(1000)
    assert deleted(simulation) == []


def test_nothing_is_replaced_while_the_coordinator_does_not_answer() -> None:
    simulation = with_unresponsive(1)
    simulation.tick(100)
    simulation.cut_off()
    assert deleted(simulation) == []


def test_nothing_is_replaced_under_a_coordinator_that_does_not_report_contacts() -> None:
    simulation = with_unresponsive(1)
    simulation.tick(100)
    observed = simulation.observed()
    without_contacts = replace(observed.coordinator, no_contact_seconds={})
    what = plan(simulation.job(), replace(observed, coordinator=without_contacts), simulation.now)
    assert not [a for a in what.actions if isinstance(a, DeletePod)]


def test_a_worker_that_imports_torch_is_shown_as_warming() -> None:
    simulation = with_unresponsive(1)
    observed = simulation.observed()
    report = observed.coordinator.status
    assert report is not None
    report = report.model_copy(update={"agents_in_contact": tuple(simulation.no_contact_since)})
    view = replace(observed.coordinator, status=report)
    what = plan(simulation.job(), replace(observed, coordinator=view), simulation.now)
    assert [w.state for w in what.status.workers] == ["Training", "Warming", "Training"]


def test_a_job_of_one_worker_keeps_it() -> None:
    simulation = Simulation(spec=make_spec(replicas=1, elasticPolicy={"minReplicas": 1}))
    simulation.run_rounds(4)
    simulation.no_contact_since[simulation.workers()[0].uid] = simulation.now
    simulation.tick(100)
    assert deleted(simulation) == []


def test_workers_that_train_on_cut_off_are_neither_unresponsive_nor_lost() -> None:
    simulation = with_unresponsive(0, 1)
    simulation.unready_nodes = {"n1", "n2"}
    simulation.trains_elsewhere = True
    for _ in range(20):
        simulation.tick(10)
        assert deleted(simulation) == []
    assert "cut off" in simulation.round().status.message
    simulation.trains_elsewhere = False
    assert set(deleted(simulation)) == {"gpt-w0-1", "gpt-w1-1"}
