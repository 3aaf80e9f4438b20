"""What the web page gets, as objects of JSON. Pure.

All of it has bounds. Times are seconds since the epoch; the page counts from them itself, so that
an answer only changes with what it says. Texts are what users wrote: the page shows them as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from regroup.kubernetes import job_summary
from regroup.kubernetes.event_record import EventRecord
from regroup.kubernetes.job_record import JobRecord, notable
from regroup.kubernetes.timeline import DrawnRecovery, timeline
from regroup.web_page.job_source import CheckpointView, JobView, LogTail
from regroup_trainer.protocol.job_status import SERIES_POINTS, SeriesPoint

JOBS_ON_A_PAGE = 100
MOST_EVENTS = 100
MOST_WORKERS = 1000
MOST_CHECKPOINTS = 200
MOST_LINES = 500
LONGEST_LINE = 2000
"""Characters."""
LONGEST_TEXT = 1024
"""Characters of a name or a message."""

Json = dict[str, Any]


def job_page(jobs: Mapping[str, JobRecord], start: int, text: str) -> Json:
    """A page of the list, from the job `start` on, of those whose identifier or phase has `text`:
    the newest first.
    """
    wanted = text.casefold()
    found = [
        (identifier, job)
        for identifier, job in jobs.items()
        if wanted in identifier.casefold() or wanted == job.phase.casefold()
    ]
    found.sort(key=lambda pair: (-(_seconds(pair[1].created) or 0), pair[0]))
    shown = found[start : start + JOBS_ON_A_PAGE]
    return {
        "total": len(found),
        "start": start,
        "pageSize": JOBS_ON_A_PAGE,
        "jobs": [{"id": identifier, **_row(job)} for identifier, job in shown],
    }


def _row(job: JobRecord) -> Json:
    report = job_summary.status_report(job)
    return {
        "namespace": cut(job.namespace),
        "name": cut(job.name),
        "phase": job.phase,
        "message": cut(report.message),
        "created": _seconds(job.created),
        "workers": report.workers,
        "wantedWorkers": report.wanted_workers,
        "step": report.step,
        "totalSteps": report.total_steps,
        "loss": _finite(report.loss),
        "checkpointStep": report.checkpoint_step,
        "restarts": report.restarts,
        "goodput": _finite(report.goodput),
    }


def job_details(identifier: str, view: JobView, now: datetime) -> Json:
    """One job: its figures, time line, workers and events."""
    job, status = view.record, view.record.status
    report = job_summary.status_report(job)
    left_out = view.workers_left_out + max(0, len(view.workers) - MOST_WORKERS)
    return {
        "id": identifier,
        **_row(job),
        "ended": job.has_ended,
        "mayHaveKeptSeries": view.may_have_kept_series,
        "phaseTime": _seconds(report.phase_time),
        "worldSize": status.world_size,
        "generation": status.rendezvous_generation or "",
        "remainingSeconds": report.remaining_seconds,
        "tokensPerSecond": _finite(status.progress.tokens_per_second),
        "samplesPerSecond": _finite(status.progress.samples_per_second),
        "stepsPerSecond": _finite(status.progress.steps_per_second),
        "lostSteps": report.lost_steps,
        "checkpointTime": _seconds(report.checkpoint_time),
        "problems": [cut(f"{c.reason}: {c.message}") for c in notable(status.conditions)],
        "timeline": _timeline(job, now),
        "workerRows": [asdict(row) for row in view.workers[:MOST_WORKERS]],
        "workersLeftOut": left_out,
        "workersNote": cut(view.workers_note),
        "events": [_event(event) for event in view.events[:MOST_EVENTS]],
    }


def _timeline(job: JobRecord, now: datetime) -> Json:
    found = timeline(job, now)
    return {
        "start": _seconds(found.start) if job.status.start_time or job.created else None,
        "end": _seconds(found.end) if found.ended else None,
        "waitsSince": _seconds(found.waits_since),
        "trained": found.trained,
        "isCut": found.is_cut,
        "recoveries": [_recovery(recovery) for recovery in found.recoveries],
    }


def _recovery(recovery: DrawnRecovery) -> Json:
    return {
        "time": _seconds(recovery.time),
        "end": _seconds(recovery.end),
        "generation": recovery.generation,
        "ranks": recovery.ranks,
        "cause": recovery.cause,
        "restoredFrom": recovery.restored_from,
        "lostSteps": recovery.lost_steps,
        "downSeconds": _finite(recovery.down_seconds),
        "message": cut(recovery.message),
    }


def _event(event: EventRecord) -> Json:
    return {
        "time": _seconds(event.time),
        "type": cut(event.type),
        "reason": cut(event.reason),
        "about": cut(f"{event.kind} {event.name}".strip()),
        "message": cut(event.message),
        "count": event.count,
    }


def series_columns(points: Sequence[SeriesPoint]) -> Json:
    """The points as columns, as the chart takes them; times rise."""
    kept = sorted(
        (point for point in points if math.isfinite(point.time)), key=lambda point: point.time
    )[-SERIES_POINTS:]
    return {
        "time": [round(point.time, 3) for point in kept],
        "step": [point.step for point in kept],
        "loss": [_finite(point.loss) for point in kept],
        "ranks": [point.world_size for point in kept],
    }


def checkpoint_rows(view: CheckpointView) -> Json:
    """The first MOST_CHECKPOINTS of these, and how many were left out. The newest comes first."""
    saved = view.saved
    rows = [
        {
            "step": one.step,
            "path": cut(one.path),
            "sizeBytes": one.size_bytes,
            "resumable": one.resumable,
            "problem": cut(one.problem),
        }
        for one in saved[:MOST_CHECKPOINTS]
    ]
    return {"checkpoints": rows, "leftOut": len(saved) - len(rows), "note": cut(view.note)}


def log_lines(tail: LogTail) -> Json:
    """At most MOST_LINES lines from the end of a log, and a note where it could not be read."""
    return {"lines": last_lines(tail.lines), "note": cut(tail.note)}


def last_lines(lines: Iterable[str], most: int = MOST_LINES) -> list[str]:
    """The last lines, each no longer than the page shows."""
    return [cut(line, LONGEST_LINE) for line in [*lines][-most:]]


def cut(text: str, most: int = LONGEST_TEXT) -> str:
    """The text, or its beginning and how much was left out."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}... ({left} more characters)"


def _seconds(time: datetime | None) -> float | None:
    return None if time is None else time.timestamp()


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
