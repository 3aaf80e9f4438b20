"""What is written into the status."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.decide.job_account import merge_ledgers
from regroup_operator.decide.job_projection import THROTTLED, differs, project
from regroup_operator.decide.plan import PlanContext
from regroup_operator.decide.planner import plan
from regroup_operator.observe.coordinator_answer import read_answer
from regroup_operator.observe.observed import CoordinatorView, Observed, Pod
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import JobEvent, MemberStatus, Recovery
from regroup_trainer.protocol.ledger import Ledger
from regroup_trainer.protocol.rank_messages import CheckpointSaved, Progress, VolumeProblem
from tests.support.largest_answer import draw_largest_answer
from tests.support.operator_simulation import Simulation, make_coordinator_status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST = GenerationNumber(1, 1)


def projected(simulation: Simulation, **answer: object) -> TrainingJobStatus:
    view = CoordinatorView(make_coordinator_status(**answer))
    observed = replace(simulation.observed(), coordinator=view)
    return project(simulation.job(), observed, simulation.status, PlanContext(), NOW)


def make_progress(**fields: object) -> Progress:
    given = {
        "generation": FIRST,
        "rank": 0,
        "step": 250,
        "time": 0.0,
        "tokens": 1000,
        "tokens_per_second": 8.0,
    }
    return Progress.model_validate({**given, **fields})


def test_progress_shows_the_step_and_the_remaining_time() -> None:
    progress = projected(Simulation(), progress=make_progress(), total_steps=500).progress
    assert (progress.step, progress.total_steps, progress.percentage) == (250, 500, 50)
    assert progress.remaining_seconds == 125
    assert progress.updated_time == "1970-01-01T00:00:00Z"


def test_a_script_shows_the_steps_that_it_reports_and_nothing_that_it_does_not() -> None:
    reported = make_progress(tokens=0, tokens_per_second=0.0, steps_per_second=2.5)
    progress = projected(Simulation(), progress=reported, total_steps=500).progress
    assert (progress.steps_per_second, progress.remaining_seconds) == (2.5, 100)
    assert (progress.epoch, progress.tokens_per_second) == (None, None)
    endless = projected(Simulation(), progress=reported, total_steps=0).progress
    assert endless.remaining_seconds is None


def test_a_job_that_counts_samples_shows_them_and_no_tokens() -> None:
    reported = make_progress(counts_samples=True)
    progress = projected(Simulation(), progress=reported, total_steps=500).progress
    assert (progress.samples_per_second, progress.tokens_per_second) == (8.0, None)
    assert progress.remaining_seconds == 125


def test_a_number_that_the_api_server_would_refuse_is_left_out() -> None:
    progress = projected(
        Simulation(), progress=make_progress(loss=float("nan"), epoch=float("inf"))
    ).progress
    assert progress.loss is None
    assert progress.epoch is None


@pytest.mark.parametrize(
    ("loss", "stored"), [(3.21441, 3.2144), (0.0, 0.0), (-3.1234e-5, -3.123e-5)]
)
def test_a_small_loss_keeps_its_significant_digits(loss: float, stored: float) -> None:
    assert projected(Simulation(), progress=make_progress(loss=loss)).progress.loss == stored


def test_the_account_never_falls_when_a_coordinator_starts_from_less() -> None:
    ledger = Ledger(
        seconds={"step": 90.0, "idle": 10.0},
        lost_work_seconds=10.0,
        gpu_seconds={"useful": 700.0, "lost": 20.0},
        lost_gpu_seconds=80.0,
        lost_steps=5,
        restarts={"hang": 2},
    )
    simulation = Simulation()
    simulation.status = projected(simulation, ledger=ledger)
    assert simulation.status.goodput.ratio == 0.8
    after = projected(simulation, ledger=Ledger(seconds={"step": 1.0}))
    assert after.goodput == simulation.status.goodput
    assert after.restart_count == after.restarts.hang == 2
    stored = merge_ledgers(after, None)
    assert stored.seconds == ledger.seconds
    assert (stored.gpu_seconds, stored.lost_gpu_seconds) == ({"useful": 700.0, "lost": 20.0}, 80.0)


def test_progress_stays_while_a_new_coordinator_knows_none() -> None:
    simulation = Simulation()
    simulation.status = projected(simulation, progress=make_progress(), total_steps=500)
    assert simulation.status.progress.step == 250
    assert projected(simulation).progress == simulation.status.progress


def test_planned_resizes_are_no_restarts() -> None:
    ledger = Ledger(restarts={"resize": 3, "infrastructure": 1})
    status = projected(Simulation(), ledger=ledger)
    assert (status.restarts.resize, status.restart_count) == (3, 1)


def test_spares_are_distinguished_from_workers_that_train() -> None:
    simulation = Simulation()
    simulation.run_rounds(4)
    members = tuple(
        MemberStatus(
            member=pod.uid, index=pod.index, pod=pod.name, node=pod.node, rank=rank, step=1
        )
        for pod, rank in zip(simulation.workers(), (0, 1, None), strict=True)
    )
    status = projected(simulation, members=members, spares=1, world_size=2)
    assert (status.ready_replicas, status.ready_spares) == (2, 1)
    assert [worker.state for worker in status.workers] == ["Training", "Training", "Spare"]


def make_recovery(term: int, n: int, time: float) -> Recovery:
    return Recovery(
        sequence=n,
        time=time,
        cause="infrastructure",
        restored_from="Checkpoint",
        generation=GenerationNumber(term, n),

        world_size_before=3, world_size_after=2, down_seconds=2.5,
    )  # fmt: skip


def test_the_last_ten_recoveries_are_kept_over_coordinators() -> None:
    simulation = Simulation()
    simulation.status = projected(
        simulation, recoveries=tuple(make_recovery(1, n, n) for n in range(2, 10))
    )
    later = projected(
        simulation, recoveries=tuple(make_recovery(2, n, 100 + n) for n in range(1, 5))
    )
    assert len(later.recoveries) == 10
    assert later.recoveries[-1].generation == "2.4"
    assert later.recoveries[0].generation == "1.4"
    assert later.recoveries[-1].down_seconds == 2.5


def test_the_newest_checkpoint_outlives_its_coordinator() -> None:
    saved = CheckpointSaved(
        generation=FIRST,
        rank=0,
        step=50,
        path="/c/step-50",
        size_bytes=7,
        seconds=0.5,
        blocking_seconds=0.1,
        time=0.0,
    )
    simulation = Simulation()
    simulation.status = projected(simulation, checkpoint=saved)
    assert simulation.status.holds("Checkpointed")
    assert projected(simulation).checkpoint.last_step == 50


def test_a_failed_save_is_reported_until_one_succeeds() -> None:
    failed = JobEvent(
        sequence=1,
        time=10.0,
        type="Warning",
        reason="CheckpointFailed",
        message="step 20: no space left on device",
    )
    simulation = Simulation()
    simulation.status = projected(simulation, events=(failed,))
    condition = simulation.status.condition("Checkpointed")
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "SaveFailed")
    assert "no space left" in condition.message
    saved = CheckpointSaved(
        generation=FIRST,
        rank=0,
        step=50,
        path="/c",
        size_bytes=7,
        seconds=0.5,
        blocking_seconds=0.1,
        time=20.0,
    )
    assert projected(simulation, events=(failed,), checkpoint=saved).holds("Checkpointed")


def test_a_step_alone_is_no_reason_to_write() -> None:
    simulation = Simulation()
    one = projected(simulation, progress=make_progress(step=1))
    simulation.status = one
    other = projected(simulation, progress=make_progress(step=2), message="training: step 2")
    assert differs(one, other)
    assert not differs(one, other, ignoring=THROTTLED)


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    simulation = Simulation()
    simulation.run_rounds(4)
    ready = simulation.status.condition("Ready")
    simulation.run_rounds(4)
    again = simulation.status.condition("Ready")
    assert ready is not None
    assert again is not None
    assert ready.last_transition_time == again.last_transition_time


def test_without_an_answer_the_ranks_train_on_as_before() -> None:
    simulation = Simulation()
    simulation.run_rounds(4)
    observed = replace(simulation.observed(), coordinator=CoordinatorView(failures=1))
    status = project(simulation.job(), observed, simulation.status, PlanContext(), NOW)
    assert (status.phase, status.world_size, status.ready_replicas) == ("Running", 3, 3)
    assert [(w.state, w.rank) for w in status.workers] == [("Training", n) for n in range(3)]


def test_without_an_answer_a_volume_stays_unavailable_and_a_pod_that_ended_does_not_train() -> None:
    simulation = Simulation()
    simulation.run_rounds(4)
    observed = simulation.observed()
    assert observed.coordinator.status is not None
    problem = VolumeProblem(path="/v", error="read-only", since=0.0, at_risk="No checkpoint.")
    report = observed.coordinator.status.model_copy(update={"volume": problem})
    view = replace(observed.coordinator, status=report)
    reported = replace(observed, coordinator=view)
    before = project(simulation.job(), reported, simulation.status, PlanContext(), NOW)
    simulation.fail(simulation.workers()[1])
    unreported = replace(simulation.observed(), coordinator=CoordinatorView(failures=1))
    after = project(simulation.job(), unreported, before, PlanContext(), NOW)
    assert after.condition("Degraded") == before.condition("Degraded")
    assert [(w.state, w.rank) for w in after.workers][1] == ("Failed", None)


def test_a_coordinator_that_refuses_us_is_quoted() -> None:
    observed = Observed(
        coordinator=CoordinatorView(failures=1, error="GET http://198.18.0.1:8471: 401 wrong token")
    )
    status = project(Simulation().job(), observed, TrainingJobStatus(), PlanContext(), NOW)
    assert "401 wrong token" in status.message


def test_a_job_of_which_nothing_is_known_waits() -> None:
    remembered = TrainingJobStatus(coordinator_term=1)
    status = project(Simulation().job(), Observed(), remembered, PlanContext(), NOW)
    assert status.phase == "Pending"
    assert status.message == "coordinator pod gpt-c1 is not made yet"


def test_the_lists_of_a_status_fit_their_maxima_and_keep_what_is_newest() -> None:
    remembered = TrainingJobStatus().model_copy(
        update={
            "handled_pods": tuple(f"uid-{number}" for number in range(8200)),
            "suspected_nodes": tuple(f"n{number}" for number in range(300)),
        }
    )
    status = project(Simulation().job(), Observed(), remembered, PlanContext(), NOW)
    assert TrainingJobStatus.model_validate(status.model_dump(by_alias=True)) == status
    assert (len(status.handled_pods), status.handled_pods[-1]) == (8192, "uid-8199")
    assert (len(status.suspected_nodes), status.suspected_nodes[-1]) == (256, "n299")


# --- what tenants have a part in ------------------------------------------------------------------


def plan_status(simulation: Simulation, observed: Observed) -> TrainingJobStatus:
    """The status that is written. Raises ValidationError for one that the API server refuses."""
    status = plan(simulation.job(), observed, simulation.now).status
    document = status.model_dump(by_alias=True, mode="json", exclude_none=True)
    return TrainingJobStatus.model_validate(document)


@pytest.mark.parametrize("phase", ["waiting", "starting", "running", "recovering", "failed"])
@pytest.mark.parametrize("result", [None, "completed", "failed", "suspended"])
def test_the_largest_answer_of_a_coordinator_fits_into_the_status(
    phase: str, result: str | None
) -> None:
    answer = draw_largest_answer(phase=phase)
    answer["outcome"] = {**answer["outcome"], "result": result} if result else None
    simulation = Simulation()
    simulation.run_rounds(4)
    view = CoordinatorView(read_answer(json.dumps(answer).encode(), 1), answering_seconds=60.0)
    status = plan_status(simulation, replace(simulation.observed(), coordinator=view))
    failed = status.condition("Failed")
    assert failed is not None
    assert (failed.reason == "TrainingFailed") == (result == "failed")


@pytest.mark.parametrize("phase", ["Pending", "Running", "Failed", "Succeeded"])
def test_the_longest_texts_of_pods_fit_into_the_status(phase: str) -> None:
    """A tenant's program writes the end of its pod; some tenants may write a pod's whole status."""
    simulation, long = Simulation(), "X" * 60_000
    simulation.run_rounds(4)
    texts = [field.name for field in fields(Pod) if field.type == "str"]
    texts = [name for name in texts if name not in ("name", "uid", "role", "ended", "placed")]
    for waiting in (long, "ErrImagePull", "CreateContainerConfigError", "CrashLoopBackOff"):
        changes: dict[str, Any] = dict.fromkeys(texts, long)
        changes |= {"node": "n" * 253, "waiting_reason": waiting}
        for pod in list(simulation.pods.values()):
            changes |= {"phase": phase, "exit_code": None}
            simulation.pods[pod.name] = replace(pod, **changes)
        plan_status(simulation, simulation.observed())
