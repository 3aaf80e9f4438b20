"""`get`: one line for each job. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.quantities import NOTHING, age, duration, percent
from regroup.kubernetes.text_tables import table

_HEADER = ("NAME", "PHASE", "WORKERS", "STEP", "PROGRESS", "CKPT", "RESTARTS", "GOODPUT", "AGE")
_WIDE = ("RANKS", "GENERATION", "LEFT", "MESSAGE")


def job_list(
    jobs: Sequence[JobRecord], now: datetime, *, with_namespace: bool, wide: bool
) -> list[str]:
    """The lines of the table."""
    header = (("NAMESPACE",) if with_namespace else ()) + _HEADER + (_WIDE if wide else ())
    rows = [
        ((job.namespace,) if with_namespace else ()) + _row(job, now) + (_more(job) if wide else ())
        for job in jobs
    ]
    return table(header, rows)


def _row(job: JobRecord, now: datetime) -> tuple[str, ...]:
    status = job.status
    progress, saved = status.progress, status.checkpoint.last_step
    step = f"{progress.step}/{progress.total_steps}" if progress.total_steps else f"{progress.step}"
    return (
        job.name,
        job.phase,
        f"{status.ready_replicas}/{job.replicas}",
        step,
        f"{progress.percentage}%" if progress.total_steps else NOTHING,
        NOTHING if saved is None else str(saved),
        str(status.restart_count),
        percent(status.goodput.ratio) if status.goodput.ratio else NOTHING,
        age(job.created, now),
    )


def _more(job: JobRecord) -> tuple[str, ...]:
    status = job.status
    return (
        str(status.world_size),
        status.rendezvous_generation or NOTHING,
        duration(status.progress.remaining_seconds),
        status.message or NOTHING,
    )
