"""The parts of the status that the coordinator's report fills. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from regroup_operator.api.status import (
    CHECKPOINT_REQUEST,
    RESTART_REQUEST,
    STRAGGLERS_KEPT,
    CheckpointStatus,
    CoordinatorEventsStatus,
    ProgressStatus,
    RecoveryStatus,
    RequestStatus,
    StragglerStatus,
    TrainingJobStatus,
)
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.job_account import MOST_STORED, storable
from regroup_operator.decide.launchers import launcher_of
from regroup_operator.decide.plan import MESSAGE_LIMIT, RECOVERIES_KEPT, PlanContext
from regroup_operator.observe.observed import AnyJob, CoordinatorView
from regroup_trainer.protocol.job_status import CoordinatorStatus, Recovery, RequestAnswer
from regroup_trainer.protocol.message import PROTOCOL_VERSION


def report_fields(status: TrainingJobStatus, report: CoordinatorStatus | None) -> dict[str, object]:
    """The fields of the new status; empty without a report, so that the former values stay."""
    if report is None:
        return {}
    return {
        "recoveries": _merge_recoveries(status.recoveries, report.recoveries),
        "checkpoint": _checkpoint(report) or status.checkpoint,
        "progress": _progress(report) or status.progress,
        "stragglers": tuple(
            StragglerStatus(rank=slow.rank, node=slow.node, percent=slow.percent)
            for slow in report.stragglers[:STRAGGLERS_KEPT]
        ),
    }


def event_fields(view: CoordinatorView) -> dict[str, object]:
    """Which of the coordinator's events exist; empty without a report."""
    if view.status is None:
        return {}
    exist = CoordinatorEventsStatus(term=view.status.term, sequence=storable(view.emitted))
    return {"coordinator_events": exist}


def request_fields(
    job: AnyJob, report: CoordinatorStatus | None, context: PlanContext, now: datetime
) -> dict[str, object]:
    """What became of what the job's annotations ask for; empty while that is as the status says."""
    answers = {
        CHECKPOINT_REQUEST: report.checkpoint_answer if report else None,
        RESTART_REQUEST: report.restart_answer if report else None,
    }
    known = {request.name: request for request in job.status.requests}
    fresh: dict[str, RequestStatus] = {}
    for name, given in answers.items():
        value, former = job.open_request(name), known.get(name)
        if not value:
            continue
        outcome, message = _answer(job, value, given, report, context)
        if former is None or (former.value, former.outcome) != (value, outcome):
            fresh[name] = RequestStatus(
                name=name,
                value=value,
                time=format_time(now),
                outcome=outcome,
                message=message[:MESSAGE_LIMIT],
            )
    return {"requests": tuple({**known, **fresh}.values())} if fresh else {}


def _answer(
    job: AnyJob,
    value: str,
    given: RequestAnswer | None,
    report: CoordinatorStatus | None,
    context: PlanContext,
) -> tuple[str, str]:
    """Outcome and sentence."""
    if given and given.request == value and given.outcome != "Pending":
        return given.outcome, given.message
    if not launcher_of(job).has_coordinator:
        return (
            "Refused",
            "spec.launcher is torchrun: only the script saves and loads its state",
        )
    if context.outcome is not None:
        return "Refused", "the job has ended"
    if context.suspension == "suspended":
        return "Refused", "the job is suspended: it saved when it was (spec.checkpoint)"
    if report is not None and report.protocol != PROTOCOL_VERSION:
        return "Refused", "the job runs an older release: suspend and resume it first"
    return "Pending", "the ranks do it after their next step"


def _progress(report: CoordinatorStatus) -> ProgressStatus | None:
    progress = report.progress
    if progress is None:
        return None
    total = report.total_steps
    left = max(0, total - progress.step)
    rate = _finite(progress.tokens_per_second) if progress.tokens else None
    return ProgressStatus(
        step=storable(progress.step),
        total_steps=storable(total),
        epoch=_finite(progress.epoch) if progress.tokens else None,  # a script reports neither
        percentage=min(100, 100 * progress.step // total) if total else 0,
        remaining_seconds=_remaining(report, left),
        tokens_per_second=None if progress.counts_samples else rate,
        samples_per_second=rate if progress.counts_samples else None,
        steps_per_second=_finite(progress.steps_per_second or None),
        loss=_finite(progress.loss),
        updated_time=_wall(progress.time),
    )


def _remaining(report: CoordinatorStatus, steps_left: int) -> int | None:
    progress = report.progress
    if progress and progress.steps_per_second > 0 and report.total_steps:  # of a script
        return int(min(MOST_STORED, steps_left / progress.steps_per_second))
    if not progress or not progress.tokens or not progress.step or progress.tokens_per_second <= 0:
        return None
    tokens_per_step = progress.tokens / progress.step
    return int(min(MOST_STORED, steps_left * tokens_per_step / progress.tokens_per_second))


def _checkpoint(report: CoordinatorStatus) -> CheckpointStatus | None:
    saved = report.checkpoint
    if saved is None:
        return None
    return CheckpointStatus(
        last_step=storable(saved.step),
        last_time=_wall(saved.time),
        path=saved.path,
        size_bytes=saved.size_bytes,
        seconds=_finite(saved.seconds),
    )


def _merge_recoveries(
    stored: tuple[RecoveryStatus, ...], fresh: tuple[Recovery, ...]
) -> tuple[RecoveryStatus, ...]:
    by_generation = {recovery.generation: recovery for recovery in stored}
    by_generation |= {str(recovery.generation): _recovery(recovery) for recovery in fresh}
    return tuple(
        sorted(by_generation.values(), key=lambda recovery: recovery.time)[-RECOVERIES_KEPT:]
    )


def _recovery(recovery: Recovery) -> RecoveryStatus:
    return RecoveryStatus(
        time=_wall(recovery.time),
        cause=recovery.cause,
        restored_from=recovery.restored_from,
        generation=str(recovery.generation),
        pod=recovery.pod,
        node=recovery.node,
        exit_code=recovery.exit_code,
        message=recovery.message[:MESSAGE_LIMIT],
        lost_steps=_storable(recovery.lost_steps),
        unflushed_steps=storable(recovery.unflushed_steps),
        resumed_from_step=_storable(recovery.resumed_from_step),
        detect_seconds=_finite(recovery.detect_seconds),
        down_seconds=_finite(recovery.down_seconds),
        world_size_before=recovery.world_size_before,
        world_size_after=recovery.world_size_after,
    )


def _storable(count: int | None) -> int | None:
    return None if count is None else storable(count)


def _finite(value: float | None) -> float | None:
    """Four decimals, or four significant digits of less than 1: a loss of 3e-5 is not 0. The API
    server refuses NaN and infinity.
    """
    if value is None or not math.isfinite(value):
        return None
    return round(value, 4) if abs(value) >= 1 else float(f"{value:.4g}")


def _wall(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
