"""A job whose coordinator speaks a protocol that this release does not: after the way back from a
newer one. It trains on, whatever becomes of its coordinator, and its message says what to do.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_operator.decide.coordinator_evidence import UNREADABLE_ANSWERS
from regroup_operator.decide.plan import REQUEUE_SECONDS, CreateCoordinator, DeletePod, Plan
from regroup_operator.observe.observed import Observed
from regroup_trainer.protocol.job_status import unknown_protocol
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from tests.support.operator_simulation import Simulation, make_spec

UNKNOWN = PROTOCOL_VERSION + 1
ADVICE = (
    f"speaks protocol {UNKNOWN}: this release speaks protocols 1, 2, 3: suspend and resume the job"
)
MANY_ROUNDS = 100


class NewerJob(Simulation):
    """No answer of its coordinator is taken, once its protocol is unknown."""

    def observed(self) -> Observed:
        observed = super().observed()
        view = observed.coordinator
        if view.status is None or not (problem := unknown_protocol(self.protocol)):
            return observed
        error = view.error if view.unanswered_seconds else problem
        view = replace(view, status=None, failures=UNREADABLE_ANSWERS, error=error)
        return replace(observed, coordinator=view)


def training_at(protocol: int) -> Simulation:
    """A job that trains, whose pods are of a release with this protocol."""
    simulation = NewerJob()
    simulation.run_rounds(4)
    simulation.status = simulation.status.model_copy(update={"protocol_version": protocol})
    simulation.protocol = protocol
    return simulation


def have_round(simulation: Simulation) -> Plan:
    """One round, after which the job trains on with the same workers, and says what to do."""
    before = simulation.workers()
    what = simulation.round()
    assert [pod.uid for pod in simulation.workers()] == [pod.uid for pod in before]
    assert what.status.phase == "Running"
    made = [action for action in what.actions if isinstance(action, CreateCoordinator)]
    assert made or ADVICE in what.status.message, "the next round follows once the pod is made"
    simulation.run_pods()
    simulation.tick(REQUEUE_SECONDS)
    return what


def kill_coordinator(simulation: Simulation) -> None:
    coordinator = simulation.coordinator()
    assert coordinator is not None
    simulation.fail(coordinator, exit_code=137)


def crash_over_and_over(simulation: Simulation) -> None:
    """The coordinator cannot start: its kubelet pauses between its tries."""
    coordinator = simulation.coordinator()
    assert coordinator is not None
    crashes = {"waiting_reason": "CrashLoopBackOff", "ready": False, "exit_code": 1}
    simulation.pods[coordinator.name] = replace(coordinator, **crashes)  # type: ignore[arg-type]
    simulation.unanswered_since = simulation.now


def coordinators_made(simulation: Simulation) -> int:
    return len([name for name in simulation.created if name.startswith("gpt-c")])


def test_its_coordinator_has_one_thing_said_about_it() -> None:
    what = have_round(training_at(UNKNOWN))
    degraded = what.status.condition("Degraded")
    assert degraded is not None
    assert degraded.reason == "CoordinatorUnreachable"
    assert degraded.message == f"coordinator pod gpt-c1 {ADVICE}"
    assert degraded.message in what.status.message
    assert what.actions == ()


def test_its_coordinator_is_not_waited_for_when_the_job_is_suspended() -> None:
    def deleted(protocol: int) -> int:
        simulation = training_at(protocol)
        simulation.spec, simulation.generation = make_spec(suspend=True), 2
        return len([action for action in simulation.round().actions if is_deletion(action)])

    assert (deleted(UNKNOWN), deleted(PROTOCOL_VERSION)) == (4, 0)


def is_deletion(action: object) -> bool:
    return isinstance(action, DeletePod)


def test_a_killed_coordinator_gets_one_successor_and_the_workers_train_on() -> None:
    simulation = training_at(UNKNOWN)
    have_round(simulation)
    kill_coordinator(simulation)
    for _ in range(MANY_ROUNDS):
        have_round(simulation)
    assert (simulation.status.coordinator_term, coordinators_made(simulation)) == (2, 2)
    assert simulation.status.pod_failures == 0


def test_a_dead_node_of_the_coordinator_costs_one_term_too() -> None:
    simulation = training_at(UNKNOWN)
    have_round(simulation)
    simulation.unready_nodes.add("n1")
    simulation.unanswered_since = simulation.now
    while coordinators_made(simulation) == 1:
        simulation.round()
        simulation.tick(REQUEUE_SECONDS)
    for _ in range(MANY_ROUNDS):
        simulation.round()
        simulation.run_pods()
        simulation.tick(REQUEUE_SECONDS)
    assert (simulation.status.coordinator_term, coordinators_made(simulation)) == (2, 2)
    assert ADVICE in simulation.status.message


@pytest.mark.parametrize("answers", [True, False])
def test_a_successor_that_cannot_start_is_left_to_its_kubelet(answers: bool) -> None:
    """It may not read what this release sends it. Another pod could not either."""
    simulation = training_at(UNKNOWN)
    have_round(simulation)
    kill_coordinator(simulation)
    have_round(simulation)
    for _ in range(MANY_ROUNDS):
        crash_over_and_over(simulation)
        if answers:  # it answered once before it crashed
            simulation.unanswered_since = None
        have_round(simulation)
    assert (simulation.status.coordinator_term, coordinators_made(simulation)) == (2, 2)
    assert "fails each time that it is started" in simulation.round().status.message


COURSES = st.lists(
    st.tuples(st.sampled_from(["kill", "crash", "silent", "answers", "wait"]), st.floats(0.1, 30)),
    max_size=20,
)


@settings(max_examples=100, deadline=None)
@given(COURSES)
def test_whatever_becomes_of_its_coordinators_each_that_was_killed_has_one_successor(
    course: list[tuple[str, float]],
) -> None:
    simulation, killed = training_at(UNKNOWN), 0
    have_round(simulation)
    for what, seconds in course:
        match what:
            case "kill":
                killed += 1
                kill_coordinator(simulation)
            case "crash":
                crash_over_and_over(simulation)
            case "silent":
                simulation.cut_off()
            case "answers":
                simulation.reconnect()
        simulation.tick(seconds)
        have_round(simulation)
        have_round(simulation)
    assert simulation.status.coordinator_term == coordinators_made(simulation) == 1 + killed
