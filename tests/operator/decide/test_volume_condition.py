"""A volume that is away makes a job Degraded."""

from __future__ import annotations

from dataclasses import replace

from regroup_operator.api.status import Condition
from regroup_operator.decide.planner import plan
from regroup_trainer.protocol.rank_messages import VolumeProblem
from tests.support.operator_simulation import Simulation, make_spec

PROBLEM = VolumeProblem(
    path="/regroup/volume/gpt/history/1-1.jsonl",
    error="No space left on device",
    since=1_700_000_000.0,
    at_risk="5 steps wait in memory.",
)


def degraded(volume: VolumeProblem | None) -> Condition:
    """The condition of a job that trains, whose coordinator reports this."""
    simulation = Simulation(spec=make_spec())
    simulation.run_rounds(4)
    observed = simulation.observed()
    answer = observed.coordinator.status
    assert answer is not None
    view = replace(observed.coordinator, status=answer.model_copy(update={"volume": volume}))
    what = plan(simulation.job(), replace(observed, coordinator=view), simulation.now)
    condition = what.status.condition("Degraded")
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
