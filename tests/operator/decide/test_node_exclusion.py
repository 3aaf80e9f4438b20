"""Which nodes a job avoids because they failed too often, and when it uses them again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_operator.api.status import EVENTS_KEPT, NODES_REMEMBERED, TrainingJobStatus
from regroup_operator.api.timestamps import format_time, parse_time
from regroup_operator.decide.node_exclusion import FORGET_SECONDS, count_node_failures
from regroup_operator.decide.plan import Event
from regroup_operator.observe.observed import Pod
from tests.support.operator_simulation import NODES, Simulation, make_spec, training


def exclude(simulation: Simulation, *nodes: str, failures: int = 2) -> None:
    """Let each of these nodes have failed just now."""
    time = format_time(simulation.now)
    update = {
        "node_failures": dict.fromkeys(nodes, failures),
        "node_failure_times": dict.fromkeys(nodes, time),
        "excluded_nodes": nodes if failures >= 2 else (),
    }
    simulation.status = simulation.status.model_copy(update=update)


def restart(simulation: Simulation, *nodes: str) -> None:
    """The power of these nodes fails for a moment."""
    for pod in simulation.workers():
        if pod.node in nodes:
            simulation.fail(pod, exit_code=255, exit_reason="Unknown")


def test_two_outages_of_all_nodes_cost_no_budget_and_leave_nodes_for_min_replicas() -> None:
    simulation = Simulation(spec=make_spec(restartPolicy={"maxRestarts": 2}))
    simulation.run_rounds(4)
    events: list[Event] = []
    for _ in range(2):
        restart(simulation, *NODES)
        for _ in range(12):
            events += simulation.round().events
            simulation.run_pods()
            simulation.tick(2)
    assert simulation.status.phase == "Running"
    assert simulation.status.pod_failures == 0
    assert len(simulation.workers()) == 3
    assert simulation.status.world_size >= 2
    excluded = {event.key for event in events if event.reason == "NodeExcluded"}
    assert len(excluded) == 3
    messages = {event.message for event in events if event.reason == "NodeReadmitted"}
    assert any("minReplicas=2 workers" in message for message in messages)


def test_an_excluded_node_stays_excluded_while_min_replicas_workers_have_a_place() -> None:
    simulation = training()
    exclude(simulation, "n2")
    restart(simulation, "n2")
    simulation.run_rounds(8)
    assert simulation.status.excluded_nodes == ("n2",)
    assert simulation.status.world_size == 2


def test_why_a_worker_is_missing_is_reported_with_the_nodes_that_it_avoids() -> None:
    simulation = training()
    exclude(simulation, "n2")
    restart(simulation, "n2")
    simulation.run_rounds(4)
    degraded = simulation.status.condition("Degraded")
    assert degraded is not None
    assert degraded.message == (
        "2 of 3 workers take part; pod gpt-w1-2 cannot be scheduled: no node fits "
        "(the job avoids n2: see status.excludedNodes)"
    )


def test_a_lost_node_is_named_before_what_the_scheduler_says_of_the_others() -> None:
    simulation = training()
    simulation.kill_node("n2")
    simulation.run_rounds(8)
    why = (
        "node n2 does not respond (bring it back, or add another one); pod gpt-w1-2 cannot be "
        "scheduled: no node fits"
    )
    conditions = [simulation.status.condition(kind) for kind in ("Degraded", "Scheduled")]
    assert [condition and condition.message for condition in conditions] == [
        f"2 of 3 workers take part; {why}",
        why,
    ]
    assert simulation.status.message == f"training; {why}"


def test_a_coordinator_without_a_place_gets_an_excluded_node() -> None:
    simulation = Simulation()
    simulation.round()
    exclude(simulation, *NODES)
    pod = simulation.coordinator()
    assert pod is not None
    simulation.pods[pod.name] = replace(pod, excluded_nodes=NODES, unschedulable="no node fits")
    simulation.run_rounds(6)
    assert len(simulation.status.excluded_nodes) < len(NODES)
    assert simulation.status.phase == "Running"


def test_a_node_is_used_again_when_its_last_failures_are_old() -> None:
    simulation = training()
    exclude(simulation, "n2")
    simulation.tick(FORGET_SECONDS - 10)
    assert simulation.round().status.excluded_nodes == ("n2",)
    simulation.tick(10)
    what = simulation.round()
    assert what.status.excluded_nodes == ()
    assert what.status.node_failures == {"n2": 1}
    assert [e.message for e in what.events] == ["node n2 is used again: no failure there for 1 h"]
    simulation.tick(FORGET_SECONDS)
    assert simulation.round().status.node_failures == {}


@pytest.mark.parametrize("times", [{}, {"n2": "2999-01-01T00:00:00Z"}])
def test_failures_without_a_time_or_of_a_wrong_clock_are_forgotten_an_hour_from_now(
    times: dict[str, str],
) -> None:
    simulation = training()
    exclude(simulation, "n2")
    simulation.status = simulation.status.model_copy(update={"node_failure_times": times})
    assert simulation.round().status.excluded_nodes == ("n2",)
    simulation.tick(FORGET_SECONDS)
    assert simulation.round().status.excluded_nodes == ()


def test_all_pods_that_one_outage_takes_from_a_node_are_one_failure() -> None:
    policy, now = training().job().policies.node_failure, parse_time("2026-11-01T10:00:00Z")
    pods = [
        Pod(f"gpt-w{n}-1", f"u{n}", "worker", n, -1, "Failed", node="n1", placed=placed)
        for n, placed in enumerate(["2026-11-01T09:00:00Z"] * 3 + ["2026-11-01T10:00:30Z"])
    ]
    status = count_node_failures(TrainingJobStatus(), pods[:2], policy, now).status
    assert status.node_failures == {"n1": 1}
    later = now + timedelta(seconds=40)
    assert count_node_failures(status, [pods[2]], policy, later).status == status
    assert count_node_failures(status, [pods[3]], policy, later).status.node_failures == {"n1": 2}
    hours = now + timedelta(hours=2)
    assert count_node_failures(status, [pods[2]], policy, hours).status.node_failures == {"n1": 2}


def test_a_status_remembers_the_nodes_that_failed_last() -> None:
    simulation = training()
    policy = simulation.job().policies.node_failure
    status = TrainingJobStatus()
    for number in range(NODES_REMEMBERED + 5):
        lost = Pod("gpt-w0-1", f"u{number}", "worker", 0, -1, "Failed", node=f"n{number}")
        status = count_node_failures(status, [lost], policy, simulation.now).status
        simulation.tick(1)
    assert len(status.node_failures) == NODES_REMEMBERED
    assert "n4" not in status.node_failures
    assert TrainingJobStatus.model_validate(status.model_dump()) == status


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["restart", "lose"]),
            st.sets(st.sampled_from(NODES), min_size=1),
            st.sampled_from([2, 60, 1800, 7200]),
        ),
        max_size=8,
    )
)
def test_no_series_of_failures_leaves_a_job_without_a_place_on_healthy_nodes(
    outages: list[tuple[str, set[str], int]],
) -> None:
    simulation = training()
    for kind, nodes, pause in outages:
        if kind == "restart":
            restart(simulation, *nodes)
        for node in nodes if kind == "lose" else ():
            simulation.kill_node(node)
        simulation.run_rounds(6)
        for node in nodes:
            simulation.start_node(node)
        simulation.tick(pause)
        simulation.run_rounds(6)
    simulation.run_rounds(20)
    assert simulation.status.world_size >= 2, simulation.status


def test_many_nodes_that_are_excluded_or_used_again_at_once_are_one_event_each() -> None:
    """A job remembers few events: what exceeds them in a round could be lost."""
    simulation = training()
    names = [f"node{number:02}" for number in range(2 * EVENTS_KEPT)]
    policy = simulation.job().policies.node_failure
    lost = [
        Pod(f"gpt-w{number}-1", f"u{number}", "worker", number, -1, "Failed", node=name)
        for number, name in enumerate(names)
    ]
    exclude(simulation, *names, failures=1)
    later = simulation.now + timedelta(minutes=5)
    counted = count_node_failures(simulation.status, lost, policy, later)
    assert counted.status.excluded_nodes == tuple(names)
    (event,) = counted.events
    assert event.message.startswith("20 nodes are excluded: node00, node01, node02 and 17 more; ")
    exclude(simulation, *names)
    simulation.tick(FORGET_SECONDS)
    what = simulation.round()
    assert what.status.excluded_nodes == ()
    (readmitted,) = [e for e in what.events if e.reason == "NodeReadmitted"]
    assert readmitted.message.startswith("20 nodes are used again: node00, node01, node02 and 17")
    remembered = {event.message for event in what.status.recent_events}
    assert {event.message for event in what.events} <= remembered
