"""`top`: how fast each job is, by its metrics or by its last status. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from regroup.kubernetes.job_record import JobRecord, time_of
from regroup.kubernetes.quantities import NOTHING, age, percent
from regroup.kubernetes.text_tables import table

Mark = tuple[int, datetime]
"""A step, and when it was made."""
Marks = Mapping[tuple[str, str], Mark]
"""Namespace and name of a job -> a mark of it."""
_HEADER = (
    "NAME", "PHASE", "STEP", "STEPS/S", "TOKENS/S", "LOSS", "RANKS", "FAILED", "GOODPUT", "SEEN",
)  # fmt: skip


def first_marks(jobs: Sequence[JobRecord], former: Marks) -> dict[tuple[str, str], Mark]:
    """The first step of each job that was seen while it trained without a pause."""
    found = {}
    for job in jobs:
        key, time = (job.namespace, job.name), time_of(job.status.progress.updated_time)
        if time is not None and job.phase in ("Running", "Resizing"):
            found[key] = former.get(key) or (job.status.progress.step, time)
    return found


def steps_per_second(job: JobRecord, first: Mark | None) -> float | None:
    """As a script reports it; else since the first mark. None while that is unknown."""
    progress = job.status.progress
    if job.phase not in ("Running", "Resizing"):
        return None
    if progress.steps_per_second:
        return progress.steps_per_second
    time = time_of(progress.updated_time)
    if first is None or time is None or time <= first[1] or progress.step <= first[0]:
        return None
    return (progress.step - first[0]) / (time - first[1]).total_seconds()


def top_lines(
    jobs: Sequence[JobRecord],
    first: Marks,
    live: Collection[tuple[str, str]],
    now: datetime,
    *,
    with_namespace: bool,
) -> list[str]:
    """The table; FAILED counts restarts, SEEN is the age of the status, or `live`."""
    header = (("NAMESPACE",) if with_namespace else ()) + _HEADER
    rows = [
        ((job.namespace,) if with_namespace else ())
        + _row(job, first.get((job.namespace, job.name)), _seen(job, live, now))
        for job in jobs
    ]
    return table(header, rows, gap="  ")


def _seen(job: JobRecord, live: Collection[tuple[str, str]], now: datetime) -> str:
    return "live" if (job.namespace, job.name) in live else age(job.status_time, now)


def _row(job: JobRecord, first: Mark | None, seen: str) -> tuple[str, ...]:
    status, progress = job.status, job.status.progress
    speed = steps_per_second(job, first)
    tokens = progress.tokens_per_second if job.phase in ("Running", "Resizing") else None
    return (
        job.name,
        job.phase,
        f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step),
        NOTHING if speed is None else f"{speed:.3g}",
        NOTHING if not tokens else f"{tokens:,.0f}",
        NOTHING if progress.loss is None else f"{progress.loss:.4g}",
        str(status.world_size),
        str(status.restart_count),
        percent(status.goodput.ratio),
        seen,
    )
