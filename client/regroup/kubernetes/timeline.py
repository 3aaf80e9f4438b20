"""`timeline`: the generations and recoveries of a job, drawn in a line. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from regroup.kubernetes.job_description import ranks_changed
from regroup.kubernetes.job_record import JobRecord, time_of
from regroup.kubernetes.quantities import NOTHING, clock, count, duration, short_seconds
from regroup.kubernetes.text_tables import paragraph, table
from regroup_operator.api.status import RecoveryStatus
from regroup_trainer.protocol.message import printable

TRAINS, STOPPED, WAITS = "=", "x", "."
_RECOVERIES_KEPT = 10
_LONGEST_SECONDS = 1e7
"""Python's clock ends somewhere, and a status may hold any number."""


@dataclass(frozen=True)
class DrawnRecovery:
    """One change of the generation."""

    time: datetime
    """When the loss was noticed."""
    end: datetime
    """When training went on; `time`, where that is unknown."""
    generation: str
    ranks: str
    cause: str
    pod: str
    """The first one lost; empty where none was."""
    node: str
    restored_from: str
    lost_steps: int | None
    down_seconds: float | None
    message: str


@dataclass(frozen=True)
class Timeline:
    """What `timeline -o json` shows."""

    start: datetime
    """Of what is drawn: the start of the job, or the first recovery that is still known."""
    end: datetime
    """Its end, or now."""
    ended: bool
    waits_since: datetime | None
    """Since when it does not train; None while it does, and after its end."""
    trained: bool
    """Whether it has ever trained."""
    is_cut: bool
    """Whether earlier recoveries are no longer known."""
    recoveries: tuple[DrawnRecovery, ...]


def timeline(job: JobRecord, now: datetime) -> Timeline:
    """The recoveries that the status remembers, in the order of time."""
    status = job.status
    recoveries = sorted(
        (recovery for one in status.recoveries if (recovery := _recovery(one))),
        key=lambda recovery: recovery.time,
    )
    is_cut = len(recoveries) >= _RECOVERIES_KEPT
    first = recoveries[0].time if recoveries else now
    start = first if is_cut else min(time_of(status.start_time) or job.created or first, first)
    trains = job.phase in ("Running", "Resizing") or job.has_ended
    return Timeline(
        start=start,
        end=(time_of(status.completion_time) if job.has_ended else None) or now,
        ended=job.has_ended,
        waits_since=None if trains else job.since("Ready") or start,
        trained=bool(status.progress.step or recoveries),
        is_cut=is_cut,
        recoveries=tuple(recoveries),
    )


def _recovery(one: RecoveryStatus) -> DrawnRecovery | None:
    """None where its time cannot be read."""
    time = time_of(one.time)
    if time is None:
        return None
    return DrawnRecovery(
        time=time,
        end=time + timedelta(seconds=min(max(one.down_seconds or 0, 0), _LONGEST_SECONDS)),
        generation=one.generation,
        ranks=ranks_changed(one),
        cause=one.cause,
        pod=one.pod,
        node=one.node,
        restored_from=one.restored_from,
        lost_steps=one.lost_steps,
        down_seconds=one.down_seconds,
        message=one.message,
    )


def timeline_lines(job: JobRecord, shown: Timeline, width: int, *, wide: bool = False) -> list[str]:
    """The drawing, its legend, and a row for each recovery; `wide` adds its pod and node."""
    span = (shown.end - shown.start).total_seconds()
    marks = count(len(shown.recoveries), "recovery", "recoveries")
    what = f"the last {marks}" if shown.is_cut else marks
    return [
        f"{job.name}: {what} in {duration(span)}, until {'its end' if shown.ended else 'now'}",
        "",
        *_drawing(shown, width),
        f"{TRAINS} trains or starts   {STOPPED} recovery   {WAITS} waits",
        *_rows(shown, width, wide),
    ]


def _drawing(shown: Timeline, width: int) -> list[str]:
    start, end = clock(shown.start), clock(shown.end)
    columns = max(width, 60) - 2
    line = bar(shown, columns)
    names = _names(shown, columns)
    return [
        start.ljust(columns + 2 - len(end)) + end,
        f"|{line}|",
        *([f" {names}"] if names.strip() else []),
    ]


def bar(shown: Timeline, columns: int) -> str:
    """One character for each stretch of time; a recovery has at least one."""
    cells = [TRAINS if shown.trained else WAITS] * columns
    for recovery in shown.recoveries:
        first, last = (_column(shown, time, columns) for time in (recovery.time, recovery.end))
        cells[first : last + 1] = STOPPED * (last - first + 1)
    if shown.waits_since is not None:
        since = _column(shown, shown.waits_since, columns)
        cells[since:] = WAITS * (columns - since)
    return "".join(cells)


def _column(shown: Timeline, time: datetime, columns: int) -> int:
    span = (shown.end - shown.start).total_seconds()
    share = (time - shown.start).total_seconds() / span if span > 0 else 0.0
    return min(columns - 1, max(0, int(share * columns)))


def _names(shown: Timeline, columns: int) -> str:
    """The generations below the places where they began, where there is room."""
    line = ""
    for recovery in shown.recoveries:
        place, name = _column(shown, recovery.time, columns), printable(recovery.generation)
        if place >= len(line) + bool(line) and place + len(name) <= columns:
            line = line.ljust(place) + name
    return line


def _rows(shown: Timeline, width: int, wide: bool) -> list[str]:
    if not shown.recoveries:
        return []
    where = ("POD", "NODE") if wide else ()
    header = ("TIME (UTC)", "GEN", "RANKS", "CAUSE", "DOWN", "LOST", "FROM", *where)
    first, *lines = table(header, [_row(recovery, wide) for recovery in shown.recoveries])
    rows = ["", first]
    for line, recovery in zip(lines, shown.recoveries, strict=True):
        rows += [line, *paragraph(recovery.message, width, "    ")]
    return rows


def _row(recovery: DrawnRecovery, wide: bool) -> Sequence[str]:
    lost, where = recovery.lost_steps, (recovery.pod or NOTHING, recovery.node or NOTHING)
    return (
        clock(recovery.time),
        recovery.generation or NOTHING,
        recovery.ranks,
        recovery.cause,
        short_seconds(recovery.down_seconds),
        NOTHING if lost is None else str(lost),
        recovery.restored_from,
        *(where if wide else ()),
    )
