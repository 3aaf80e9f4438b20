"""A run of this machine in the form that a cluster gives a job. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from regroup.kubernetes.event_record import EventRecord
from regroup.kubernetes.job_record import JobRecord
from regroup.local.local_status import job_status
from regroup.local.run_record import RunRecord
from regroup.web_page.job_source import JobView, WorkerRow, ranks_text
from regroup_operator.api.status import Condition, GoodputStatus, ProgressStatus, TrainingJobStatus
from regroup_operator.api.timestamps import format_time
from regroup_trainer.protocol.job_status import CoordinatorStatus, Outcome

KILLED = Outcome(
    result="failed",
    message="`regroup run` was killed: the same command goes on from the newest checkpoint",
)
NOT_YET = TrainingJobStatus(
    phase="Starting",
    message="its processes start",
)
ONLY_FILES = TrainingJobStatus(
    message="its run has left no record that can be read: only its files are shown"
)


def local_view(name: str, found: RunRecord | None, *, is_held: bool) -> JobView:
    """The job of a folder with this record, its workers and events; `is_held`: whether a run has
    the folder now. Raises ValueError, OverflowError or OSError for times that no clock has.
    """
    report = found.report if found else None
    job = local_record(name, found, is_held=is_held)
    return JobView(job, worker_rows(report), 0, event_records(report))


def local_record(name: str, found: RunRecord | None, *, is_held: bool) -> JobRecord:
    """The job alone."""
    status = NOT_YET if is_held else ONLY_FILES
    if found is not None:
        status = _status(found, found.outcome or (None if is_held else KILLED))
    start = None if found is None else datetime.fromtimestamp(found.start, UTC)
    return JobRecord(
        namespace="",
        name=name if found is None else found.job,
        uid="",
        created=start,
        generation=1,
        spec={"replicas": found.workers} if found else {},
        status=status,
        has_status=found is not None,
        status_time=None if found is None else datetime.fromtimestamp(found.time, UTC),
        spec_time=start,
        unreadable=(),
    )


def _status(found: RunRecord, outcome: Outcome | None) -> TrainingJobStatus:
    status, report = job_status(found.report, outcome, found.workers), found.report
    end = _time(found.time) if outcome is not None else None
    fields: dict[str, object] = {"start_time": _time(found.start), "completion_time": end}
    if found.uses_torchrun:
        fields["progress"] = _progress(found)
        if outcome is None:
            fields |= {"phase": "Running", "message": "torchrun runs its ranks: see their logs"}
    if report is not None:
        ledger = report.ledger
        fields["goodput"] = GoodputStatus(lost_steps=ledger.lost_steps, ratio=ledger.goodput_ratio)
        fields["conditions"] = (_ready(found, report, status),)
    return status.model_copy(update=fields)


def _progress(found: RunRecord) -> ProgressStatus:
    done, total = found.step, found.total_steps
    return ProgressStatus(
        step=done,
        total_steps=total,
        percentage=min(100, 100 * done // total) if total else 0,
        loss=found.loss,
    )


def _ready(found: RunRecord, report: CoordinatorStatus, status: TrainingJobStatus) -> Condition:
    """Since when it does not train: since its last step."""
    trains = status.phase in ("Running", "Resizing", "Succeeded")
    waiting = report.waiting
    return Condition(
        type="Ready",
        status="True" if trains else "False",
        reason=waiting.reason if waiting else str(status.phase),
        message=(waiting.message if waiting else status.message)[:1024],
        last_transition_time=_time(report.progress.time if report.progress else found.start),
    )


def worker_rows(report: CoordinatorStatus | None) -> list[WorkerRow]:
    """The members of the newest generation, by their index."""
    if report is None:
        return []
    placed = sum(member.rank is not None and not member.lost for member in report.members)
    ranks = report.world_size // placed if placed else 1
    slow = {one.member: f"{one.percent}% slower than the others" for one in report.stragglers}
    rows = [
        WorkerRow(
            worker=member.index,
            pod=member.pod,
            node=member.node,
            state="Lost" if member.lost else "Training" if member.rank is not None else "Waiting",
            ranks=ranks_text(None if member.lost else member.rank, ranks),
            step=member.step,
            note=member.lost or slow.get(member.member, ""),
        )
        for member in report.members
    ]
    return sorted(rows, key=lambda row: row.worker)


def event_records(report: CoordinatorStatus | None) -> list[EventRecord]:
    """The events of the coordinator, the newest first."""
    events = sorted(report.events if report else (), key=lambda event: event.sequence, reverse=True)
    return [
        EventRecord(
            time=datetime.fromtimestamp(event.time, UTC),
            type=event.type,
            reason=event.reason,
            kind="",
            name="",
            message=event.message,
        )
        for event in events
    ]


def _time(seconds: float) -> str:
    return format_time(datetime.fromtimestamp(seconds, UTC))
