"""How many workers of a job a drain may evict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.decide.coordinator_evidence import UNANSWERED_SECONDS
from regroup_operator.decide.plan import (
    CreateCoordinator,
    CreateWorker,
    EnsureDisruptionBudget,
    PostLost,
)
from regroup_operator.render.workload import disruption_budget
from tests.support.operator_simulation import Simulation, make_spec
from tests.support.rendering import make_valid_job


def started(**fields: Any) -> Simulation:
    """A job whose workers have just begun to run."""
    simulation = Simulation(spec=make_spec(**fields))
    simulation.run_rounds(1)
    return simulation


def budgets(simulation: Simulation) -> list[int]:
    return [
        action.fewest
        for action in simulation.round().actions
        if isinstance(action, EnsureDisruptionBudget)
    ]


@pytest.mark.parametrize(
    ("fields", "fewest"),
    [
        ({"replicas": 3, "elasticPolicy": {"minReplicas": 1, "maxReplicas": 4}}, 1),
        ({"replicas": 3, "elasticPolicy": {"minReplicas": 2, "maxReplicas": 4}}, 2),
        ({"replicas": 3, "elasticPolicy": {"minReplicas": 3, "maxReplicas": 4}}, 2),
        ({"replicas": 3, "elasticPolicy": None}, 2),
    ],
)
def test_the_fewest_workers_stay_and_one_may_always_be_taken(
    fields: dict[str, Any], fewest: int
) -> None:
    assert budgets(started(**fields)) == [fewest]


def test_there_is_no_budget_before_as_many_workers_run_as_it_keeps() -> None:
    simulation = Simulation(spec=make_spec(replicas=3, elasticPolicy=None))
    simulation.dead_nodes = {"n2", "n3"}
    simulation.run_rounds(4)
    assert budgets(simulation) == [], "one worker runs, two are to be kept"


def test_a_single_worker_gets_no_budget_that_would_hold_its_node() -> None:
    assert budgets(started(replicas=1, elasticPolicy=None)) == []


def test_another_least_changes_the_budget_and_the_same_leaves_it_alone() -> None:
    simulation = Simulation()
    simulation.run_rounds(4)
    assert budgets(simulation) == []
    simulation.spec = make_spec(elasticPolicy={"minReplicas": 1, "maxReplicas": 4})
    assert budgets(simulation) == [1]


def test_the_budget_counts_the_workers_and_goes_with_the_job() -> None:
    budget = disruption_budget(make_valid_job(), 2)
    assert budget["metadata"]["name"] == "gpt-workers"
    assert budget["metadata"]["ownerReferences"][0]["uid"] == make_valid_job().uid
    assert budget["spec"]["selector"] == {
        "matchLabels": {"regroup.dev/job": "gpt", "regroup.dev/role": "worker"}
    }
    assert budget["spec"]["minAvailable"] == 2
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow", (
        "a pod that cannot start holds no node"
    )


def evict(simulation: Simulation, name: str) -> None:
    """What the eviction API does to a pod."""
    pod = simulation.pods[name]
    simulation.pods[name] = replace(
        pod, terminating=True, true_conditions=frozenset({"DisruptionTarget"})
    )


def test_an_evicted_worker_is_replaced_at_once_and_left_to_deregister_itself() -> None:
    simulation = Simulation()
    simulation.run_rounds(4)
    evict(simulation, "gpt-w1-1")
    actions = simulation.round().actions
    assert [action.index for action in actions if isinstance(action, CreateWorker)] == [1]
    assert not [action for action in actions if isinstance(action, PostLost)], (
        "it still takes its ranks to a last step"
    )
    assert simulation.status.pod_failures == 0


def test_an_evicted_coordinator_leads_until_it_is_gone_and_then_gets_one_successor() -> None:
    simulation = Simulation()
    simulation.run_rounds(4)
    evict(simulation, "gpt-c1")
    what = simulation.round()
    assert not [action for action in what.actions if isinstance(action, CreateCoordinator)]
    assert what.follow
    del simulation.pods["gpt-c1"]
    made = [
        action.term
        for action in simulation.round().actions
        if isinstance(action, CreateCoordinator)
    ]
    assert made == [2]


def test_an_evicted_coordinator_whose_node_dies_meanwhile_gets_a_successor() -> None:
    simulation = Simulation()
    simulation.run_rounds(4)
    evict(simulation, "gpt-c1")
    simulation.lose_coordinator()
    simulation.tick(UNANSWERED_SECONDS)
    made = [
        action.term
        for action in simulation.round().actions
        if isinstance(action, CreateCoordinator)
    ]
    assert made == [2]
