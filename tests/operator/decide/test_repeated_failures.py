"""A job whose program fails again and again is Degraded, though each of its tries trains."""

from __future__ import annotations

from datetime import timedelta

import pytest

from regroup_operator.api.status import Condition, RecoveryStatus, Restarts
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.planner import plan
from tests.support.operator_simulation import (
    Simulation,
    make_invalid_job,
    make_spec,
    make_torchrun_spec,
)

SHARD = "rank 0 on gpt-w0-1 (node n1) ended with exit code 1: RuntimeError: shard 7 is corrupt"


def which_failed(*causes: str, minutes_apart: float = 5, **spec: object) -> Simulation:
    """A job that trains after these recoveries. The last one was a minute ago."""
    simulation = Simulation(spec=make_spec(**spec))
    simulation.run_rounds(4)
    last = simulation.now - timedelta(minutes=1)
    times = [last - timedelta(minutes=minutes_apart * n) for n in range(len(causes))][::-1]
    recoveries = tuple(
        RecoveryStatus(time=format_time(time), cause=cause, generation=f"1.{n}", message=SHARD)
        for n, (cause, time) in enumerate(zip(causes, times, strict=True), 2)
    )
    counts = {cause: causes.count(cause) for cause in causes}
    simulation.status = simulation.status.model_copy(
        update={"recoveries": recoveries, "restarts": Restarts.model_validate(counts)}
    )
    return simulation


def degraded(simulation: Simulation) -> Condition:
    condition = plan(simulation.job(), simulation.observed(), simulation.now).status.condition(
        "Degraded"
    )
    assert condition is not None
    return condition


def test_three_failures_in_half_an_hour_say_how_often_why_and_what_is_left() -> None:
    simulation = which_failed("application", "resize", "hang", "application")
    first = format_time(simulation.now - timedelta(minutes=16))
    condition = degraded(simulation)
    assert (condition.status, condition.reason) == ("True", "RepeatedFailures")
    assert condition.message == (
        f"3 failures of the program since {first}; 8 of 10 restarts are left "
        "(restartPolicy.maxRestarts), 2 of 3 restarts after a hang are left "
        f"(restartPolicy.maxHangRestarts); the last one: {SHARD}"
    )


def test_only_the_budgets_that_failures_use_are_named() -> None:
    failed = degraded(which_failed("application", "application", "application")).message
    assert "; 7 of 10 restarts are left (restartPolicy.maxRestarts); the last one" in failed
    hung = degraded(which_failed("hang", "hang", "hang")).message
    assert "; 0 of 3 restarts after a hang are left (restartPolicy.maxHangRestarts); the" in hung


def test_without_a_limit_nothing_is_said_of_it() -> None:
    simulation = which_failed(*["application"] * 3, restartPolicy={"maxRestarts": -1})
    first = format_time(simulation.now - timedelta(minutes=11))
    assert degraded(simulation).message == (
        f"3 failures of the program since {first}; the last one: {SHARD}"
    )


def test_only_as_many_failures_are_counted_as_the_status_remembers() -> None:
    simulation = which_failed(*["application"] * 10, minutes_apart=1)
    assert degraded(simulation).message.startswith("10 failures of the program or more since ")


@pytest.mark.parametrize(
    ("causes", "minutes_apart"),
    [
        (("application", "application"), 1),
        (("infrastructure", "preemption", "resize", "infrastructure"), 1),
        (("application", "application", "application"), 15),
    ],
)
def test_few_failures_old_ones_and_lost_nodes_do_not_count(
    causes: tuple[str, ...], minutes_apart: float
) -> None:
    assert degraded(which_failed(*causes, minutes_apart=minutes_apart)).status == "False"


def test_failures_count_half_an_hour() -> None:
    simulation = which_failed(*["application"] * 3)
    simulation.tick(17 * 60)
    assert degraded(simulation).status == "True"
    simulation.tick(3 * 60)
    assert degraded(simulation).status == "False"


def test_they_count_while_no_generation_trains() -> None:
    simulation = which_failed(*["application"] * 3)
    simulation.status = simulation.status.model_copy(update={"rendezvous_generation": None})
    simulation.lose_coordinator()
    assert degraded(simulation).reason == "RepeatedFailures"


def test_a_job_with_an_invalid_spec_is_not_judged() -> None:
    simulation = which_failed(*["application"] * 3)
    observed, now = simulation.observed(), simulation.now
    invalid = plan(make_invalid_job(simulation.job()), observed, now).status
    assert not invalid.holds("Degraded")


def test_the_budget_of_torchrun_is_its_own() -> None:
    simulation = which_failed(*["application"] * 3)
    simulation.spec = make_torchrun_spec()
    condition = degraded(simulation)
    assert condition.reason == "RepeatedFailures"
    assert "restarts" not in condition.message
