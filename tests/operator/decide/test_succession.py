"""What the pods of a job need to start and to find their coordinator, in virtual time."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from regroup_operator.decide.losses import CUT_OFF_SECONDS
from regroup_operator.decide.plan import (
    REQUEUE_SECONDS,
    CreateCoordinator,
    CreateWorker,
    DeletePod,
    EnsureToken,
)
from regroup_operator.decide.planner import STEADY_SECONDS, plan
from tests.support.operator_simulation import Simulation, make_torchrun_spec, training


def term_after_refusal(simulation: Simulation, unmade_term: int) -> int:
    """The term of the coordinator that is made next."""
    observed = replace(simulation.observed(), unmade_term=unmade_term)
    actions = plan(simulation.job(), observed, simulation.now).actions
    (term,) = [action.term for action in actions if isinstance(action, CreateCoordinator)]
    return term


def test_a_coordinator_that_was_refused_is_tried_again_under_its_term() -> None:
    simulation = Simulation()
    simulation.round(crash_after=0)
    assert simulation.status.coordinator_term == 1
    assert term_after_refusal(simulation, unmade_term=1) == 1
    assert term_after_refusal(simulation, unmade_term=2) == 2, "not that of this refusal"


def test_a_term_that_a_pod_has_is_not_used_again_whatever_was_answered() -> None:
    simulation = training()
    simulation.fail(simulation.pods["gpt-c1"])
    assert term_after_refusal(simulation, unmade_term=1) == 2


def uncreated_worker(reason: str = "ContainerCreating") -> Simulation:
    """A job whose third worker was placed just now, and has no containers yet."""
    simulation = training()
    pod = simulation.workers()[2]
    simulation.pods[pod.name] = replace(
        pod, phase="Pending", waiting_reason=reason, placed=simulation.now.isoformat()
    )
    return simulation


def test_the_token_is_sent_before_a_worker_is_made() -> None:
    simulation = training()
    simulation.fail(simulation.workers()[0], exit_code=137)
    actions = simulation.round().actions
    assert EnsureToken() in actions
    created = next(n for n, action in enumerate(actions) if isinstance(action, CreateWorker))
    assert actions.index(EnsureToken()) < created


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing", ""])
def test_the_token_is_sent_more_and_more_rarely_while_a_pod_waits_for_its_containers(
    reason: str,
) -> None:
    simulation = uncreated_worker(reason)
    begun, sent = simulation.now, len(simulation.tokens_sent)
    while (simulation.now - begun).total_seconds() < 600:
        simulation.tick(simulation.round().requeue_after or pytest.fail("nobody looks again"))
    ages = [(time - begun).total_seconds() for time in simulation.tokens_sent[sent:]]
    assert ages[0] == 5.0
    assert ages[-1] > 500
    pauses = [later - earlier for earlier, later in itertools.pairwise(ages)]
    assert min(pauses) >= 2
    assert len(ages) < 20


def test_no_token_is_sent_in_the_rounds_of_a_job_that_trains() -> None:
    simulation = training()
    sent = len(simulation.tokens_sent)
    for _ in range(10):
        assert simulation.round().requeue_after == STEADY_SECONDS
        simulation.tick(30)
    assert len(simulation.tokens_sent) == sent


def test_a_pod_whose_image_cannot_be_pulled_needs_no_token() -> None:
    simulation = uncreated_worker("ImagePullBackOff")
    simulation.tick(100)
    assert EnsureToken() not in simulation.round().actions


def test_a_clock_that_is_behind_that_of_the_api_server_is_no_reason_to_send() -> None:
    simulation = uncreated_worker()
    simulation.tick(-3600)
    assert EnsureToken() not in simulation.round().actions


def test_a_pod_that_waits_for_its_containers_is_named_with_what_may_be_missing() -> None:
    simulation = uncreated_worker()
    simulation.tick(29)
    assert "it mounts" not in simulation.round().status.message
    simulation.tick(1)
    status = simulation.round().status
    degraded = status.condition("Degraded")
    assert degraded is not None
    for message in (status.message, degraded.message):
        assert "; pod gpt-w2-1 is on node n3 since" in message
        assert "something that it mounts is missing" in message
        assert "kubectl describe pod gpt-w2-1" in message


def test_no_contact_after_the_deletion_of_the_service_costs_no_worker() -> None:
    simulation = training()
    pods = simulation.workers()
    simulation.service = None
    simulation.lost_since = {pod.uid: simulation.now for pod in pods}
    simulation.tick(5)
    assert not [a for a in simulation.round().actions if isinstance(a, DeletePod)]
    assert simulation.observed().service
    simulation.tick(CUT_OFF_SECONDS - 1)
    assert simulation.round().requeue_after == REQUEUE_SECONDS
    assert simulation.workers() == pods
    assert simulation.status.suspected_nodes == ()
    simulation.tick(1)
    assert len([a for a in simulation.round().actions if isinstance(a, DeletePod)]) == 3


def test_torchrun_uses_no_token() -> None:
    simulation = Simulation(spec=make_torchrun_spec())
    simulation.run_rounds(6)
    assert simulation.workers()
    simulation.fail(simulation.workers()[0], exit_code=137)
    assert EnsureToken() not in simulation.round().actions
