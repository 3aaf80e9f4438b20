"""When a coordinator that does not answer gets a successor, in virtual time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.decide.coordinator_evidence import (
    BYSTANDERS,
    OUTAGE_SECONDS,
    UNANSWERED_SECONDS,
    UNREADABLE_ANSWERS,
    bystanders,
    explain_no_answer,
    why_dead,
    witnesses,
)
from regroup_operator.decide.plan import REQUEUE_SECONDS, CreateCoordinator, Plan
from regroup_operator.decide.planner import plan
from regroup_operator.observe.observed import (
    LEASE_STALE_SECONDS,
    CoordinatorView,
    Node,
    Observed,
    Pod,
)
from regroup_trainer.protocol.desired import CoordinatorContact
from tests.support.operator_simulation import (
    make_coordinator_status,
    make_spec,
    training,
)

COORDINATOR = Pod(
    "gpt-c1", "uid-c", "coordinator", -1, 1, "Running", node="n1", ip="198.18.0.1", ready=True
)
RECENT, OLD = 0.5, UNANSWERED_SECONDS


def why(pod: Pod, observed: Observed, generation: str | None = None) -> str:
    """Why it is dead. `generation`: what the stored status names."""
    return why_dead(pod, observed, TrainingJobStatus(rendezvous_generation=generation))


def make_worker(index: int, node: str = "") -> Pod:
    name, node = f"gpt-w{index}-1", node or f"n{index + 1}"
    return Pod(name, f"uid-{index}", "worker", index, -1, "Running", node=node, ip="198.18.0.2")


def make_observed(
    *unanswered: float | None,
    node: Node | None = None,
    workers: tuple[Pod, ...] = (),
    **view: object,
) -> Observed:
    """A coordinator that has not answered for too long. `unanswered`: seconds that the agents of
    workers 0, 1, ... report; None: nothing.
    """
    contacts = {
        f"uid-{index}": CoordinatorContact(term=1, unanswered_seconds=seconds)
        for index, seconds in enumerate(unanswered)
        if seconds is not None
    }
    given = CoordinatorView(
        status=make_coordinator_status(),
        failures=3,
        unanswered_seconds=UNANSWERED_SECONDS,
        contacts=contacts,
        error="http://198.18.0.1:8471/v1/status: it takes too long",
    )
    return Observed(
        pods=(COORDINATOR, *(workers or tuple(map(make_worker, range(3))))),
        nodes={node.name: node} if node else {},
        coordinator=replace(given, **view),  # type: ignore[arg-type]
    )


# --- pods and nodes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (Node("n1", exists=False), "does not exist"),
        (Node("n1", ready=False), "is not Ready"),
        (Node("n1", lease_unchanged_seconds=LEASE_STALE_SECONDS), "does not renew its lease"),
        (Node("n1"), ""),
        (None, ""),
    ],
)
def test_a_bad_node_shows_that_an_unresponsive_coordinator_is_dead(
    node: Node | None, words: str
) -> None:
    found = why(COORDINATOR, make_observed(node=node))
    assert (words in found) if words else found == ""


def test_a_pod_that_is_not_ready_shows_it_unless_its_kubelet_starts_it_again_or_at_first() -> None:
    observed, not_ready = make_observed(), replace(COORDINATOR, ready=False)
    assert "not Ready" in why(not_ready, observed)
    assert why(replace(not_ready, waiting_reason="CrashLoopBackOff"), observed) == ""
    assert why(not_ready, make_observed(status=None)) == "", "it has yet to start"


def test_the_stored_status_shows_that_a_coordinator_led_before_the_operator_started() -> None:
    never_asked, not_ready = make_observed(status=None), replace(COORDINATOR, ready=False)
    assert "not Ready" in why(not_ready, never_asked, "1.7")
    assert why(not_ready, never_asked, "0.7") == "", "that was one of an older term"
    assert why(not_ready, never_asked, "11.7") == ""


def test_nothing_shows_it_while_it_answers() -> None:
    node = Node("n1", ready=False)
    observed = make_observed(OLD, OLD, OLD, node=node, unanswered_seconds=0.0, failures=0)
    assert why(replace(COORDINATOR, ready=False), observed) == ""


# --- agents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unanswered", "dead"),
    [
        ((), False),
        ((None, OLD, OLD), True),
        ((OLD, OLD, OLD), True),
        ((None, OLD, None), False),
        ((None, OLD, RECENT), False),
        ((RECENT, OLD, OLD), False),
        ((None, OLD, OLD - 0.1), False),
        ((OLD, None, None), False),
    ],
)
def test_two_agents_on_other_nodes_have_to_report_no_answer_and_none_an_answer(
    unanswered: tuple[float | None, ...], dead: bool
) -> None:
    assert bool(why(COORDINATOR, make_observed(*unanswered))) == dead


def test_all_agents_have_to_report_it_where_there_are_fewer_than_two_elsewhere() -> None:
    pair = (make_worker(0), make_worker(1))
    assert witnesses(COORDINATOR, make_observed(workers=pair)) == pair[1:]
    assert why(COORDINATOR, make_observed(None, OLD, workers=pair))
    assert why(COORDINATOR, make_observed(RECENT, OLD, workers=pair)) == ""
    alone = (make_worker(0),)
    assert witnesses(COORDINATOR, make_observed(workers=alone)) == alone
    assert why(COORDINATOR, make_observed(OLD, workers=alone))
    assert why(COORDINATOR, make_observed(workers=alone)) == ""
    ended = (replace(make_worker(0), phase="Failed"),)
    assert why(COORDINATOR, make_observed(OLD, workers=ended)) == ""


def test_an_agent_beside_the_coordinator_outweighs_the_only_one_elsewhere_and_shows_no_death() -> (
    None
):
    beside = tuple(make_worker(index, node="n1") for index in range(6))
    workers = (*beside[:2], make_worker(2))
    observed = make_observed(workers=workers)
    assert witnesses(COORDINATOR, observed) == workers[2:]
    assert bystanders(COORDINATOR, observed) == workers[:2]
    assert why(COORDINATOR, make_observed(None, None, OLD, workers=workers)), "their node is lost"
    assert why(COORDINATOR, make_observed(None, RECENT, OLD, workers=workers)) == ""
    assert why(COORDINATOR, make_observed(OLD, OLD, None, workers=workers)) == ""
    many = make_observed(workers=(*beside, make_worker(6)))
    assert len(bystanders(COORDINATOR, many)) == BYSTANDERS


def test_no_agent_beside_the_coordinator_is_asked_where_two_are_elsewhere_or_none() -> None:
    assert bystanders(COORDINATOR, make_observed()) == ()
    alone = make_observed(workers=(make_worker(0), make_worker(1, node="n1")))
    assert bystanders(COORDINATOR, alone) == ()


def test_agents_that_never_knew_this_coordinator_count_only_where_the_operator_knew_it() -> None:
    observed = make_observed(None, OLD, OLD)
    others = {
        uid: contact.model_copy(update={"term": None})
        for uid, contact in observed.coordinator.contacts.items()
    }
    view = replace(observed.coordinator, contacts=others)
    assert why(COORDINATOR, replace(observed, coordinator=view))
    unknown = replace(view, status=None)
    assert why(COORDINATOR, replace(observed, coordinator=unknown)) == ""


def test_agents_do_not_count_while_many_coordinators_stopped_answering_at_once() -> None:
    observed = make_observed(OLD, OLD, OLD, trusts_agents=False)
    assert why(COORDINATOR, observed) == ""
    assert why(COORDINATOR, replace(observed, nodes={"n1": Node("n1", ready=False)}))


# --- how it is explained --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        (make_observed(), "Whether it is dead is unknown"),
        (make_observed(RECENT), "It still answers its workers"),
        (make_observed(trusts_agents=False), "Many coordinators stopped answering at once"),
    ],
)
def test_an_unresponsive_coordinator_that_is_kept_is_explained(
    observed: Observed, words: str
) -> None:
    waiting = explain_no_answer(COORDINATOR, observed, TrainingJobStatus())
    assert waiting is not None
    assert waiting.reason == "CoordinatorUnreachable"
    assert "gpt-c1 on node n1 does not answer the operator" in waiting.message
    assert words in waiting.message


def test_an_answer_that_is_no_status_is_no_death_and_is_quoted() -> None:
    observed = make_observed(
        OLD, OLD, OLD, unanswered_seconds=0.0, error="GET http://...: 401 wrong token"
    )
    assert why(COORDINATOR, observed) == ""
    waiting = explain_no_answer(COORDINATOR, observed, TrainingJobStatus())
    assert waiting is not None
    assert "cannot take: GET http://...: 401 wrong token" in waiting.message
    once = replace(observed.coordinator, failures=UNREADABLE_ANSWERS - 1)
    observed = replace(observed, coordinator=once)
    assert explain_no_answer(COORDINATOR, observed, TrainingJobStatus()) is None


# --- in the plan ----------------------------------------------------------------------------------


def successors(what: Plan) -> list[int]:
    return [action.term for action in what.actions if isinstance(action, CreateCoordinator)]


def test_an_operator_that_is_cut_off_replaces_nothing_and_says_what_it_does_not_know() -> None:
    simulation = training()
    simulation.cut_off()
    for _ in range(100):
        simulation.tick(REQUEUE_SECONDS)
        assert simulation.round().actions == ()
    what = simulation.round()
    assert "; coordinator pod gpt-c1 on node n1 does not answer" in what.status.message
    assert "unknown" in what.status.message
    assert what.status.phase == "Running"
    assert what.status.holds("Ready")
    degraded = what.status.condition("Degraded")
    assert degraded is not None
    assert (degraded.status, degraded.reason) == ("True", "CoordinatorUnreachable")
    assert "gpt-c1 on node n1 does not answer the operator. Whether" in degraded.message
    assert "it takes too long" not in degraded.message, "the next try may say otherwise"
    simulation.reconnect()
    what = simulation.round()
    assert (what.actions, simulation.status.coordinator_term) == ((), 1)
    assert "does not answer" not in what.status.message
    assert not what.status.holds("Degraded")


def test_a_dead_coordinator_is_replaced_as_soon_as_operator_and_agents_miss_it_for_3_s() -> None:
    simulation = training()
    simulation.kill_node("n1")
    begun = simulation.now
    while not successors(what := simulation.round()):
        simulation.tick(1.0)  # agents that report so are news
    assert (simulation.now - begun).total_seconds() == UNANSWERED_SECONDS
    assert "n1" in what.status.suspected_nodes


def test_during_an_outage_of_many_nodes_are_looked_at_less_often() -> None:
    simulation = training()
    simulation.cut_off()
    simulation.tick(UNANSWERED_SECONDS)
    assert simulation.round().requeue_after == REQUEUE_SECONDS
    simulation.trusts_agents = False
    assert simulation.round().requeue_after == OUTAGE_SECONDS


def test_a_suspended_job_saves_although_the_operator_is_cut_off() -> None:
    simulation = training()
    simulation.cut_off()
    simulation.tick(20)
    simulation.spec, simulation.generation = make_spec(suspend=True), 2
    assert len(simulation.pods) == 4
    simulation.round()
    assert not [pod for pod in simulation.pods.values() if pod.terminating]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["cut", "reconnect", "outage", "calm", "restart", "wait"]),
        st.floats(0.1, 20),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_whatever_the_operator_cannot_see_a_coordinator_that_lives_is_never_replaced(
    steps: list[tuple[str, float]],
) -> None:
    simulation, restarted = training(), False
    for what, seconds in steps:
        match what:
            case "cut":
                simulation.cut_off()
            case "reconnect":
                simulation.reconnect()
                restarted = False
            case "outage" | "calm":
                simulation.trusts_agents = what == "calm"
            case "restart":
                restarted = True
        simulation.tick(seconds)
        observed = simulation.observed()
        if restarted:
            view = replace(observed.coordinator, status=None)
            observed = replace(observed, coordinator=view)
        made = plan(simulation.job(), observed, simulation.now)
        assert made.actions == ()
        assert made.status.coordinator_term == 1
