"""A job that makes no step for long is Degraded, before its ranks are ended."""

from __future__ import annotations

from dataclasses import replace

from regroup_operator.api.status import Condition
from regroup_operator.decide.planner import plan
from regroup_operator.observe.observed import CoordinatorView
from regroup_trainer.protocol.job_status import Stall
from tests.support.operator_simulation import Simulation, make_spec

STALL = Stall(since=1_700_000_000.0, step=551, limit_seconds=600.0)


def training() -> Simulation:
    simulation = Simulation(spec=make_spec())
    simulation.run_rounds(4)
    return simulation


def degraded(simulation: Simulation, view: CoordinatorView) -> Condition:
    """The condition, which the job then has."""
    observed = replace(simulation.observed(), coordinator=view)
    simulation.status = plan(simulation.job(), observed, simulation.now).status
    condition = simulation.status.condition("Degraded")
    assert condition is not None
    return condition


def reported(simulation: Simulation, stall: Stall | None) -> CoordinatorView:
    """What the coordinator reports, with this."""
    view = simulation.observed().coordinator
    assert view.status is not None
    return replace(view, status=view.status.model_copy(update={"stall": stall}))


def test_a_job_that_stands_still_says_since_when_and_what_follows() -> None:
    simulation = training()
    condition = degraded(simulation, reported(simulation, STALL))
    assert (condition.status, condition.reason) == ("True", "NoProgress")
    assert condition.message == (
        "no step since 2023-11-14T22:13:20Z, after step 551: a rank hangs, or a save, an "
        "evaluation or data take so long; all ranks begin anew after 600 s without one"
    )


def test_it_stays_while_the_coordinator_does_not_answer_and_goes_with_the_next_step() -> None:
    simulation = training()
    degraded(simulation, reported(simulation, STALL))
    assert degraded(simulation, CoordinatorView()).reason == "NoProgress"
    assert degraded(simulation, reported(simulation, None)).status == "False"
