"""`top`: how fast each job is, by its metrics or by its last status. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from regroup.kubernetes.job_record import JobRecord, time_of
from regroup.kubernetes.quantities import NOTHING, age, duration, percent
from regroup.kubernetes.text_tables import table

WINDOW = timedelta(seconds=30)
"""Speeds are means over that long, or over two statuses that are further apart."""
_LONGEST_SECONDS = 1e9
"""A status may hold any speed."""
Mark = tuple[int, datetime]
"""A step, and when it was made."""
Marks = Mapping[tuple[str, str], tuple[Mark, ...]]
"""Namespace and name of a job -> its marks of the last moments, the oldest first."""
_HEADER = (
    "NAME", "PHASE", "STEP", "STEPS/S", "TOKENS/S", "LOSS", "RANKS", "FAILED", "GOODPUT", "SEEN",
)  # fmt: skip
_WIDE = ("SAMPLES/S", "GENERATION", "LEFT")


@dataclass(frozen=True)
class TopRow:
    """One job, as `top -o json` shows it."""

    namespace: str
    name: str
    phase: str
    step: int
    total_steps: int
    steps_per_second: float | None
    tokens_per_second: float | None
    samples_per_second: float | None
    loss: float | None
    ranks: int
    restarts: int
    goodput: float
    generation: str | None
    remaining_seconds: float | None
    live: bool
    """Whether its metrics were read. Else all is as old as its status."""
    status_time: datetime | None


def recent_marks(
    jobs: Sequence[JobRecord], former: Marks
) -> dict[tuple[str, str], tuple[Mark, ...]]:
    """The marks of each job that trains, with that of this look. A pause of the training, and steps
    that are done again, begin a new measurement.
    """
    found = {}
    for job in jobs:
        key, time = (job.namespace, job.name), time_of(job.status.progress.updated_time)
        if time is not None and _trains(job):
            found[key] = _with_mark(former.get(key, ()), (job.status.progress.step, time))
    return found


def marks_since(begin: datetime | None, marks: Iterable[Mark]) -> tuple[Mark, ...]:
    """Of marks from the oldest on, the last moments, and none from before `begin`."""
    kept: tuple[Mark, ...] = ()
    for mark in marks:
        if begin is None or mark[1] >= begin:
            kept = _with_mark(kept, mark)
    return kept


def _with_mark(marks: tuple[Mark, ...], newest: Mark) -> tuple[Mark, ...]:
    if marks and newest[1] <= marks[-1][1]:
        return marks
    if not marks or newest[0] < marks[-1][0]:
        return (newest,)
    marks = (*marks, newest)
    while len(marks) > 2 and newest[1] - marks[1][1] >= WINDOW:
        marks = marks[1:]
    return marks


def steps_per_second(job: JobRecord, marks: Sequence[Mark]) -> float | None:
    """As a script reports it; else by its marks. None while that is unknown."""
    if not _trains(job):
        return None
    if job.status.progress.steps_per_second:
        return job.status.progress.steps_per_second
    if len(marks) < 2:
        return None
    (first, since), (last, until) = marks[0], marks[-1]
    return (last - first) / (until - since).total_seconds()


def top_rows(
    jobs: Sequence[JobRecord], marks: Marks, live: Collection[tuple[str, str]]
) -> list[TopRow]:
    """What is known of each job; `live`: the jobs whose metrics were read."""
    return [_row(job, marks, live) for job in jobs]


def _row(job: JobRecord, marks: Marks, live: Collection[tuple[str, str]]) -> TopRow:
    key, status, progress = (job.namespace, job.name), job.status, job.status.progress
    trains = _trains(job)
    speed, left = steps_per_second(job, marks.get(key, ())), progress.total_steps - progress.step
    return TopRow(
        namespace=job.namespace,
        name=job.name,
        phase=job.phase,
        step=progress.step,
        total_steps=progress.total_steps,
        steps_per_second=speed,
        tokens_per_second=(progress.tokens_per_second or None) if trains else None,
        samples_per_second=(progress.samples_per_second or None) if trains else None,
        loss=progress.loss,
        ranks=status.world_size,
        restarts=status.restart_count,
        goodput=status.goodput.ratio,
        generation=status.rendezvous_generation,
        remaining_seconds=min(left / speed, _LONGEST_SECONDS)
        if speed and left > 0
        else progress.remaining_seconds,
        live=key in live,
        status_time=job.status_time,
    )


def top_lines(
    rows: Sequence[TopRow], now: datetime, *, with_namespace: bool, wide: bool
) -> list[str]:
    """The table; FAILED counts restarts, SEEN is the age of the status, or `live`."""
    header = (("NAMESPACE",) if with_namespace else ()) + _HEADER + (_WIDE if wide else ())
    lines = [
        ((row.namespace,) if with_namespace else ())
        + _cells(row, now)
        + (_more(row) if wide else ())
        for row in rows
    ]
    return table(header, lines, gap="  ")


def _cells(row: TopRow, now: datetime) -> tuple[str, ...]:
    return (
        row.name,
        row.phase,
        f"{row.step}/{row.total_steps}" if row.total_steps else str(row.step),
        NOTHING if row.steps_per_second is None else f"{row.steps_per_second:.3g}",
        NOTHING if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}",
        NOTHING if row.loss is None else f"{row.loss:.4g}",
        str(row.ranks),
        str(row.restarts),
        percent(row.goodput),
        "live" if row.live else age(row.status_time, now),
    )


def _more(row: TopRow) -> tuple[str, ...]:
    samples = row.samples_per_second
    return (
        NOTHING if samples is None else f"{samples:,.0f}",
        row.generation or NOTHING,
        duration(row.remaining_seconds),
    )


def _trains(job: JobRecord) -> bool:
    return job.phase in ("Running", "Resizing")
