"""A worker for which all others wait: reported, and replaced when the spec asks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.api.status import NODES_REMEMBERED
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.plan import CreateWorker, DeletePod, Plan
from regroup_operator.decide.planner import plan
from regroup_trainer.protocol.job_status import Straggler
from tests.support.operator_simulation import Simulation, make_spec


def job(action: str = "Replace", **spec: Any) -> Simulation:
    simulation = Simulation(spec=make_spec(failureDetection={"stragglerAction": action}, **spec))
    simulation.run_rounds(4)
    return simulation


def planned(simulation: Simulation) -> Plan:
    """What is planned once the coordinator has found that the second worker is slow."""
    observed = simulation.observed()
    answer = observed.coordinator.status
    assert answer is not None
    pod = simulation.workers()[1]
    slow = Straggler(rank=1, member=pod.uid, pod=pod.name, node=pod.node, percent=80)
    view = replace(observed.coordinator, status=answer.model_copy(update={"stragglers": (slow,)}))
    return plan(simulation.job(), replace(observed, coordinator=view), simulation.now)


def test_a_straggler_is_reported_in_status_and_condition() -> None:
    what = planned(job("Report"))
    (straggler,) = what.status.stragglers
    assert (straggler.rank, straggler.percent) == (1, 80)
    degraded = what.status.condition("Degraded")
    assert degraded is not None
    assert (degraded.status, degraded.reason) == ("True", "Stragglers")
    assert "rank 1 on n2 computes 80 % longer than the median rank" in degraded.message
    assert what.actions == ()


def test_it_leaves_as_in_a_drain_and_its_place_is_taken_on_another_node() -> None:
    simulation = job()
    victim = simulation.workers()[1]
    what = planned(simulation)
    assert [action.pod.name for action in what.actions if isinstance(action, DeletePod)] == [
        victim.name
    ]
    (made,) = [action for action in what.actions if isinstance(action, CreateWorker)]
    assert (made.index, made.excluded_nodes) == (1, ("n2",))
    assert what.status.excluded_nodes == ("n2",)
    assert [event.reason for event in what.events] == ["StragglerReplaced", "WorkersCreated"]


def test_its_node_stays_excluded() -> None:
    simulation = job()
    simulation.status = planned(simulation).status
    assert simulation.round().status.excluded_nodes == ("n2",)


@pytest.mark.parametrize(
    "spec",
    [
        {"elasticPolicy": {"minReplicas": 3, "maxReplicas": 3}},
        {"nodeFailurePolicy": {"excludeAfterFailures": 0}},
    ],
    ids=["the others are too few", "no node may be avoided"],
)
def test_a_straggler_is_kept_when_the_job_cannot_do_without_it(spec: dict[str, Any]) -> None:
    assert planned(job(**spec)).actions == ()


def test_a_spare_makes_up_for_it() -> None:
    simulation = job(replicas=2, spares=1, elasticPolicy={"minReplicas": 2, "maxReplicas": 2})
    assert any(isinstance(action, DeletePod) for action in planned(simulation).actions)


def test_only_one_is_replaced_at_a_time() -> None:
    simulation = job()
    first = simulation.workers()[0]
    simulation.pods[first.name] = replace(first, terminating=True)
    actions = planned(simulation).actions
    assert not [action for action in actions if isinstance(action, DeletePod)]


def test_its_node_is_remembered_although_as_many_as_a_status_holds_have_failed() -> None:
    simulation = job()
    nodes = [f"old-{number}" for number in range(NODES_REMEMBERED)]
    failures: dict[str, object] = {
        "node_failures": dict.fromkeys(nodes, 1),
        "node_failure_times": dict.fromkeys(nodes, format_time(simulation.now)),
    }
    simulation.status = simulation.status.model_copy(update=failures)
    status = planned(simulation).status
    assert status.excluded_nodes == ("n2",)
    assert len(status.node_failures) == NODES_REMEMBERED
