"""Events of Kubernetes as values, and how they are shown. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from regroup.kubernetes.job_record import JobRecord, time_of
from regroup.kubernetes.quantities import age
from regroup.kubernetes.text_tables import paragraph, table
from regroup_operator.api.resource import KIND, Object

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class EventRecord:
    """One event, however often it came."""

    time: datetime | None
    """When it came last."""
    type: str
    reason: str
    kind: str
    name: str
    """Kind and name of the object that it is about."""
    message: str
    count: int = 1
    uid: str = ""
    """Of that object; empty where the writer of the event did not know it."""


def read_events(documents: Iterable[Object]) -> list[EventRecord]:
    """The events, newest first."""
    events = [read_event(document) for document in documents]
    return sorted(events, key=lambda event: event.time or _NEVER, reverse=True)


def belongs(event: EventRecord, job: JobRecord, pods: Mapping[str, str] | None = None) -> bool:
    """Whether an event is about the job or one of its pods (name -> UID), those included that its
    recoveries name and that are gone. A deleted job and its pods may have had the same names.
    """
    if event.kind == KIND:
        return event.name == job.name and event.uid in ("", job.uid)
    if event.kind != "Pod" or pods is None:
        return False
    if event.name in pods:
        return event.uid in ("", pods[event.name])
    is_gone = any(recovery.pod == event.name for recovery in job.status.recoveries)
    return is_gone and (not (event.time and job.created) or event.time >= job.created)


def read_event(document: Object) -> EventRecord:
    """One event; what cannot be read of it has defaults."""
    about = document.get("involvedObject") or {}
    series = document.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        document.get("lastTimestamp"),
        document.get("eventTime"),
        document.get("firstTimestamp"),
    )
    number = series.get("count") or document.get("count") or 1
    return EventRecord(
        time=next(filter(None, map(time_of, times)), None),
        type=str(document.get("type") or "Normal"),
        reason=str(document.get("reason") or ""),
        kind=str(about.get("kind") or ""),
        name=str(about.get("name") or ""),
        message=str(document.get("message") or ""),
        count=number if isinstance(number, int) else 1,
        uid=str(about.get("uid") or ""),
    )


def event_lines(events: Sequence[EventRecord], now: datetime, width: int) -> list[str]:
    """A row for each event, and its message below."""
    rows = [(age(e.time, now), e.type, _reason(e)) for e in events]
    if not rows:
        return []
    header, *lines = table(("AGO", "TYPE", "REASON"), rows, "  ")
    shown = [header]
    for line, event in zip(lines, events, strict=True):
        shown += [line, *paragraph(event.message, width, "      ")]
    return shown


def _reason(event: EventRecord) -> str:
    return event.reason + (f" ({event.count} times)" if event.count > 1 else "")
