"""A volume that is away makes a job Degraded, and keeps pods whose state is in memory alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from regroup_operator.api.status import Condition
from regroup_operator.decide.plan import DeletePod, Plan
from regroup_operator.decide.planner import plan
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.rank_messages import VolumeProblem
from regroup_trainer.protocol.waiting_reasons import WaitingReason
from tests.support.operator_simulation import Simulation, make_spec

PROBLEM = VolumeProblem(
    path="/regroup/volume/gpt/history/1-1.jsonl",
    error="No space left on device",
    since=1_700_000_000.0,
    at_risk="5 steps wait in memory.",
)


def decided(simulation: Simulation, **reported: Any) -> Plan:
    """What the operator decides while the coordinator reports this."""
    observed = simulation.observed()
    answer = observed.coordinator.status
    assert answer is not None
    view = replace(observed.coordinator, status=answer.model_copy(update=reported))
    return plan(simulation.job(), replace(observed, coordinator=view), simulation.now)


def deleted(what: Plan) -> list[str]:
    """Names of the pods that it deletes."""
    return [action.pod.name for action in what.actions if isinstance(action, DeletePod)]


def degraded(volume: VolumeProblem | None) -> Condition:
    """The condition of a job that trains, whose coordinator reports this."""
    simulation = Simulation(spec=make_spec())
    simulation.run_rounds(4)
    condition = decided(simulation, volume=volume).status.condition("Degraded")
    assert condition is not None
    return condition


def test_a_volume_that_is_away_is_named_with_path_error_time_and_what_is_at_risk() -> None:
    condition = degraded(PROBLEM)
    assert (condition.status, condition.reason) == ("True", "VolumeUnavailable")
    assert condition.message == (
        "/regroup/volume/gpt/history/1-1.jsonl: No space left on device "
        "(since 2023-11-14T22:13:20Z). 5 steps wait in memory."
    )


def test_a_job_whose_volume_answers_is_not_degraded() -> None:
    assert degraded(None).status == "False"


def test_a_job_that_is_to_be_suspended_waits_for_its_volume_as_long_as_it_takes() -> None:
    simulation = Simulation(spec=make_spec())
    simulation.run_rounds(4)
    simulation.spec, simulation.generation = make_spec(suspend=True), 2
    simulation.round()
    simulation.tick(10_000)
    message = f"generation 1.1 waits for the volume: {PROBLEM.sentence}"
    waiting = Waiting.of(WaitingReason.VolumeUnavailable, message)
    away = {"phase": "stopping", "message": message, "waiting": waiting, "volume": PROBLEM}
    what = decided(simulation, **away)
    assert deleted(what) == []
    advice = "free or repair the volume; to give the newest steps up, delete the worker pods"
    assert what.status.message == f"suspending: {message} ({advice})"
    conditions = [what.status.condition(kind) for kind in ("Ready", "Degraded")]
    assert [found and found.reason for found in conditions] == ["VolumeUnavailable"] * 2
    assert len(deleted(decided(simulation, phase="stopping"))) == 4


def suspending_without_its_volume() -> tuple[Simulation, Plan]:
    """A job that is to be suspended for hours, and what was decided last: to wait."""
    simulation = Simulation(spec=make_spec())
    simulation.run_rounds(4)
    simulation.spec, simulation.generation = make_spec(suspend=True), 2
    simulation.round()
    simulation.tick(10_000)
    waiting = Waiting.of(WaitingReason.VolumeUnavailable, "the volume is full")
    what = decided(simulation, phase="stopping", waiting=waiting, volume=PROBLEM)
    simulation.status = what.status
    return simulation, what


def test_a_coordinator_that_does_not_answer_costs_no_state_that_the_volume_refused() -> None:
    """Its process starts again, or the network is slow for a moment."""
    simulation, _ = suspending_without_its_volume()
    observed = simulation.observed()
    view = replace(observed.coordinator, status=None, error="timed out")
    what = plan(simulation.job(), replace(observed, coordinator=view), simulation.now)
    assert deleted(what) == []


def test_a_save_has_its_time_after_the_volume_is_back() -> None:
    """So has a new coordinator, which does not know yet what its workers wait for."""
    simulation, _ = suspending_without_its_volume()
    what = decided(simulation, phase="waiting")
    assert deleted(what) == []
    simulation.status = what.status
    simulation.tick(60)
    assert deleted(decided(simulation, phase="waiting")) == []
    simulation.tick(100)
    assert len(deleted(decided(simulation, phase="waiting"))) == 4


def test_workers_that_are_too_many_are_not_deleted_before_the_volume_has_what_they_hold() -> None:
    simulation = Simulation(spec=make_spec())
    simulation.run_rounds(4)
    simulation.spec, simulation.generation = make_spec(replicas=2), 2
    assert deleted(decided(simulation, volume=PROBLEM)) == []
    assert deleted(decided(simulation)) == ["gpt-w2-1"]
    members = simulation.observed().coordinator.status
    assert members is not None
    released = tuple(one.model_copy(update={"rank": None}) for one in members.members)
    assert deleted(decided(simulation, volume=PROBLEM, members=released)) == ["gpt-w2-1"]
