"""What becomes of a job of whose stored status a part could not be read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.plan import CreateCoordinator, CreateWorker, Plan
from regroup_operator.decide.planner import plan
from regroup_operator.observe.observed import CoordinatorView, Observed
from regroup_operator.observe.stored_status import read_status
from regroup_trainer.protocol.job_status import Outcome
from regroup_trainer.protocol.ledger import Ledger
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from tests.support.garbled_status import UNREADABLE_TIMES, garbled
from tests.support.operator_simulation import (
    Simulation,
    make_coordinator_status,
    make_invalid_job,
    make_spec,
    make_torchrun_spec,
    training,
)

LATER = datetime(2026, 2, 1, tzinfo=UTC)


def planned_after(simulation: Simulation, observed: Observed | None = None, /, **odd: Any) -> Plan:
    """The plan once these fields of the stored status were replaced by what cannot be read."""
    stored = {**simulation.status.model_dump(by_alias=True, mode="json"), **odd}
    status, unreadable = read_status(stored, LATER)
    assert unreadable
    job = replace(simulation.job(), status=status, unreadable_status=unreadable)
    return plan(job, observed or simulation.observed(), simulation.now)


def test_it_is_named_in_an_event() -> None:
    what = planned_after(training(), nextIncarnation="many", progress=7)
    (event,) = what.events
    assert (event.type, event.reason) == ("Warning", "StatusUnreadable")
    assert "nextIncarnation" in event.message
    assert "progress" in event.message


def test_new_workers_get_a_number_that_no_worker_had() -> None:
    simulation = training()
    simulation.fail(simulation.workers()[0], exit_code=143)
    what = planned_after(simulation, nextIncarnation="many")
    (made,) = [action for action in what.actions if isinstance(action, CreateWorker)]
    assert made.incarnation == int(LATER.timestamp())
    assert what.status.next_incarnation == made.incarnation + 1


def test_the_next_coordinator_gets_a_term_that_no_coordinator_had() -> None:
    what = planned_after(training(), coordinatorTerm=None)
    (made,) = [action for action in what.actions if isinstance(action, CreateCoordinator)]
    assert made.term == what.status.coordinator_term == int(LATER.timestamp()) + 1


def test_failures_that_may_have_been_counted_are_not_counted_again() -> None:
    simulation = training()
    for pod in simulation.workers():
        simulation.fail(pod, exit_code=1)
    simulation.round(crash_after=0)
    assert simulation.status.pod_failures == 3
    what = planned_after(simulation, handledPods=7)
    assert what.status.pod_failures == 3
    assert len(what.status.handled_pods) == 3


def test_restarts_are_restored_from_the_account_of_the_coordinator() -> None:
    simulation = training()
    report = make_coordinator_status(ledger=Ledger(restarts={"infrastructure": 4}))
    stored = {**simulation.status.model_dump(by_alias=True, mode="json"), "restarts": "many"}
    status, unreadable = read_status(stored, LATER)
    assert status.restarts.infrastructure == 0
    job = replace(simulation.job(), status=status, unreadable_status=unreadable)
    observed = replace(simulation.observed(), coordinator=CoordinatorView(report))
    assert plan(job, observed, simulation.now).status.restarts.infrastructure == 4


@pytest.mark.parametrize("field", ["coordinatorTerm", "nextIncarnation", "podFailures"])
def test_a_counter_at_its_end_does_not_freeze_the_job(field: str) -> None:
    simulation = training()
    for pod in (*simulation.workers(), simulation.coordinator()):
        assert pod is not None
        simulation.fail(pod, exit_code=1)
    what = planned_after(simulation, **{field: 2**31 - 1})
    type(what.status).model_validate(what.status.model_dump())


@pytest.mark.parametrize("time", UNREADABLE_TIMES)
@pytest.mark.parametrize("field", ["startTime", "lastPodFailureTime"])
def test_a_time_that_cannot_be_read_does_not_stop_the_job(field: str, time: str) -> None:
    simulation = Simulation(spec=make_spec(activeDeadlineSeconds=60))
    simulation.run_rounds(4)
    for pod in simulation.workers():
        simulation.fail(pod, exit_code=1)
    simulation.round(crash_after=0)
    what = planned_after(simulation, **{field: time})
    assert (what.status.phase, what.status.pod_failures) == ("Recovering", 3)
    if field == "lastPodFailureTime":  # the back-off is over
        assert len([action for action in what.actions if isinstance(action, CreateWorker)]) == 3


def test_an_end_whose_time_cannot_be_read_gets_another_so_that_the_job_is_still_deleted() -> None:
    simulation = Simulation(spec=make_spec(ttlSecondsAfterFinished=30))
    simulation.run_rounds(4)
    simulation.outcome = Outcome(result="completed", message="trained 500 steps")
    simulation.run_rounds(4)
    what = planned_after(simulation, completionTime="yesterday")
    assert what.status.completion_time == format_time(simulation.now)


UPGRADED = {"trainer": "trainer:2", "coordinator": "operator:2"}


@pytest.mark.parametrize("images", [7, {}, {"trainer": 7, "coordinator": []}])
def test_a_running_job_stays_at_the_images_of_its_pods(images: Any) -> None:
    simulation = training()
    started_with, simulation.images = simulation.images, UPGRADED
    assert planned_after(simulation, images=images, progress=7).status.images == started_with


def test_the_image_that_no_pod_shows_is_the_one_of_today() -> None:
    simulation = training()
    simulation.images = UPGRADED
    for pod in simulation.workers():
        del simulation.pods[pod.name]
    shown = planned_after(simulation, images=7).status.images
    assert shown == {"trainer": "trainer:2", "coordinator": "operator:1"}


def test_an_image_that_the_status_cannot_hold_is_not_remembered() -> None:
    simulation = training()
    simulation.images = {}
    for pod in simulation.workers():
        simulation.pods[pod.name] = replace(pod, image="a" * 1025)
    assert planned_after(simulation, images=7).status.images == {"coordinator": "operator:1"}


def test_a_job_whose_spec_became_invalid_stays_at_its_images_too() -> None:
    simulation = training()
    started_with, simulation.images = simulation.images, {}
    status, unreadable = read_status({"startTime": "2026-01-01T00:00:00Z", "images": 7}, LATER)
    job = make_invalid_job(replace(simulation.job(), status=status, unreadable_status=unreadable))
    assert plan(job, simulation.observed(), LATER).status.images == started_with


def test_a_running_job_stays_at_the_protocol_that_its_coordinator_reports() -> None:
    simulation = training()
    view = CoordinatorView(make_coordinator_status(protocol=1))
    for observed, expected in (
        (replace(simulation.observed(), coordinator=CoordinatorView()), None),
        (replace(simulation.observed(), coordinator=view), 1),
        (replace(simulation.observed(), pods=(), coordinator=CoordinatorView()), PROTOCOL_VERSION),
    ):
        what = planned_after(simulation, observed, protocolVersion="x")
        assert what.status.protocol_version == expected


@settings(deadline=None, max_examples=300)
@given(
    garbled(), st.sampled_from([make_spec, make_torchrun_spec]), st.booleans(), st.integers(0, 3)
)
def test_whatever_is_stored_a_plan_is_made_whose_status_can_be_read(
    stored: dict[str, Any], spec: Any, suspend: bool, failed: int
) -> None:
    simulation = Simulation(spec=spec(activeDeadlineSeconds=60, ttlSecondsAfterFinished=60))
    simulation.run_rounds(2)
    for pod in simulation.workers()[:failed]:
        simulation.fail(pod)
    status, unreadable = read_status(stored, LATER)
    job = replace(simulation.job(), status=status, unreadable_status=unreadable, suspend=suspend)
    made = plan(job, simulation.observed(), LATER).status
    assert read_status(made.model_dump(by_alias=True, mode="json"), LATER)[1] == ()
