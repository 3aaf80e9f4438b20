"""A checkpoint that an annotation asks for: who receives it, and what the status shows of it."""

from __future__ import annotations

import pytest

from regroup_operator.api.status import CHECKPOINT_REQUEST, RequestStatus
from regroup_operator.decide.plan import Action, CreateCoordinator, PutDesired
from regroup_operator.render.workload import desired
from regroup_trainer.protocol.job_status import Outcome, RequestAnswer
from regroup_trainer.protocol.ledger import Ledger
from tests.support.operator_simulation import Simulation, make_torchrun_spec, training


def asked(simulation: Simulation, request: str = "now-1") -> Simulation:
    simulation.request = request
    return simulation


def sent(simulation: Simulation) -> list[Action]:
    """The messages of a round to the coordinator."""
    actions = simulation.round().actions
    return [action for action in actions if isinstance(action, PutDesired)]


def outcome(simulation: Simulation) -> RequestStatus:
    found = simulation.status.request(CHECKPOINT_REQUEST)
    assert found is not None
    return found


def test_a_request_is_passed_on_once_and_acknowledged() -> None:
    simulation = asked(training())
    assert sent(simulation) == [PutDesired()]
    assert (outcome(simulation).value, outcome(simulation).outcome) == ("now-1", "Pending")
    assert desired(simulation.job(), Ledger()).checkpoint_request == "now-1"
    first = outcome(simulation)
    simulation.tick(30)
    assert sent(simulation) == [], "the coordinator knows of it"
    assert outcome(simulation) == first, "nothing is written while nothing changes"
    simulation.answer = RequestAnswer(request="now-1", outcome="Done", message="step 7")
    simulation.round()
    assert (outcome(simulation).outcome, outcome(simulation).message) == ("Done", "step 7")
    assert desired(simulation.job(), Ledger()).checkpoint_request == ""
    simulation.tick(30)
    assert sent(simulation) == []


def test_another_value_asks_again_and_takes_the_place_of_the_former() -> None:
    simulation = asked(training())
    simulation.round()
    simulation.answer = RequestAnswer(request="now-1", outcome="Failed", message="full")
    simulation.round()
    asked(simulation, "now-2")
    assert sent(simulation) == [PutDesired()]
    (request,) = simulation.status.requests
    assert (request.value, request.outcome) == ("now-2", "Pending")


def test_the_answer_counts_for_an_operator_that_has_just_started() -> None:
    """What is known of a request is in the object, and with the coordinator."""
    simulation = asked(training())
    simulation.round(crash_after=0)
    assert outcome(simulation).outcome == "Pending"
    assert sent(simulation) == [PutDesired()]


def test_the_successor_of_a_coordinator_learns_of_a_request_without_an_answer() -> None:
    simulation = asked(training())
    simulation.round()
    pod = simulation.coordinator()
    assert pod is not None
    simulation.fail(pod)
    simulation.answer = None
    actions = simulation.round().actions
    assert any(isinstance(action, CreateCoordinator) for action in actions)
    assert desired(simulation.job(), Ledger()).checkpoint_request == "now-1"


def test_without_a_request_nothing_is_said() -> None:
    assert training().status.requests == ()


def suspended() -> Simulation:
    simulation = training()
    simulation.spec["suspend"] = True
    simulation.generation += 1
    simulation.outcome = Outcome(result="suspended", message="suspended")
    simulation.run_rounds(4)
    return simulation


def ended() -> Simulation:
    simulation = training()
    simulation.outcome = Outcome(result="completed", message="trained 500 steps")
    simulation.run_rounds(2)
    return simulation


def stock() -> Simulation:
    return Simulation(spec=make_torchrun_spec())


def of_an_older_release() -> Simulation:
    simulation = training()
    simulation.protocol = 2
    return simulation


@pytest.mark.parametrize(
    ("simulation", "why"),
    [
        (stock(), "spec.launcher is torchrun"),
        (suspended(), "the job is suspended"),
        (ended(), "the job has ended"),
        (of_an_older_release(), "the job runs an older release"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(simulation: Simulation, why: str) -> None:
    assert sent(asked(simulation)) == []
    assert outcome(simulation).outcome == "Refused"
    assert outcome(simulation).message.startswith(why)


def test_a_request_waits_until_the_job_trains() -> None:
    simulation = asked(Simulation())
    simulation.round()
    assert outcome(simulation).outcome == "Pending"


def test_a_restart_is_asked_for_beside_a_checkpoint() -> None:
    simulation = asked(training())
    simulation.round()
    simulation.restart = "now-2@40"
    assert sent(simulation) == [PutDesired()]
    assert desired(simulation.job(), Ledger()).restart_request == "now-2@40"
    simulation.answer = RequestAnswer(request="now-1", outcome="Done", message="step 7")
    why = "there is no checkpoint of step 40"
    simulation.restart_answer = RequestAnswer(request="now-2@40", outcome="Refused", message=why)
    simulation.round()
    shown = [(one.name, one.outcome, one.message) for one in simulation.status.requests]
    assert shown == [("CheckpointNow", "Done", "step 7"), ("Restart", "Refused", why)]
    assert sent(simulation) == []
