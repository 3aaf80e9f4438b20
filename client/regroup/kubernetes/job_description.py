"""`describe`: everything that the status of a job says, with its events. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from regroup.kubernetes import job_summary
from regroup.kubernetes.event_record import EventRecord, event_lines
from regroup.kubernetes.job_record import JobRecord, time_of
from regroup.kubernetes.quantities import NOTHING, age, clock, duration, percent, short_seconds
from regroup.kubernetes.text_tables import bullets, facts, paragraph, table
from regroup_operator.api.resource import Object
from regroup_operator.api.status import RecoveryStatus, TrainingJobStatus

EVENTS_SHOWN = 20


@dataclass(frozen=True)
class Description:
    """What `describe -o json` shows."""

    namespace: str
    name: str
    created: datetime | None
    spec: Object
    status: TrainingJobStatus
    unreadable_fields: tuple[str, ...]
    events: tuple[EventRecord, ...]


def describe(job: JobRecord, events: Sequence[EventRecord]) -> Description:
    """The job with its events."""
    return Description(
        namespace=job.namespace,
        name=job.name,
        created=job.created,
        spec=job.spec,
        status=job.status,
        unreadable_fields=job.unreadable,
        events=tuple(events),
    )


def description_lines(
    job: JobRecord,
    events: Sequence[EventRecord],
    now: datetime,
    width: int,
    *,
    wide: bool = False,
) -> list[str]:
    """The description for a person; `wide`: with all events."""
    sections = {
        "": _head(job, now, width),
        "Time (goodput)": _ledger(job),
        "Conditions": _conditions(job, now, width),
        "Recoveries": _recoveries(job, now, width),
        "Workers": worker_table(job, {}),
        "Events": event_lines(events[: None if wide else EVENTS_SHOWN], now, width),
    }
    lines: list[str] = []
    for title, body in sections.items():
        lines += ["", f"{title}:", *(body or ["  none"])] if title else body
    return lines


def _head(job: JobRecord, now: datetime, width: int) -> list[str]:
    status = job.status
    pairs = [
        ("Name", job.name),
        ("Namespace", job.namespace),
        ("Created", f"{clock(job.created)} UTC, {age(job.created, now)} ago"),
        ("Phase", job.phase),
        ("Message", job_summary.message(job)),
        ("Launcher", str(job.spec.get("launcher") or "regroup")),
        ("Image", status.images.get("trainer") or str(job.spec.get("image") or "the default")),
        ("Workers", job_summary.workers(job)),
        ("Generation", status.rendezvous_generation or "none"),
        ("Progress", job_summary.progress(job, now)),
        ("Checkpoint", "\n".join(filter(None, _checkpoint(job, now)))),
        ("Stragglers", _stragglers(status)),
        ("Avoided nodes", ", ".join((*status.excluded_nodes, *status.suspected_nodes))),
        ("Status of", f"{clock(job.status_time)} UTC, {age(job.status_time, now)} ago"),
        ("Cannot be read", ", ".join(f"status.{field}" for field in job.unreadable)),
    ]
    return facts([(name, value) for name, value in pairs if value], width)


def _checkpoint(job: JobRecord, now: datetime) -> tuple[str, str]:
    saved = job.status.checkpoint
    took = f", saved in {short_seconds(saved.seconds)}" if saved.seconds is not None else ""
    return job_summary.checkpoint(job, now) + took, saved.path or ""


def _stragglers(status: TrainingJobStatus) -> str:
    return ", ".join(
        f"rank {s.rank}{f' on {s.node}' if s.node else ''}: {s.percent:.0f}% slower"
        for s in status.stragglers[:8]
    )


def _ledger(job: JobRecord) -> list[str]:
    """Where the time went: each share of all."""
    spent = job.status.goodput
    parts = {
        "training": spent.productive_seconds,
        "startup": spent.startup_seconds,
        "recovery": spent.recovery_seconds,
        "checkpoints": spent.checkpoint_seconds,
        "waiting": spent.waiting_seconds,
    }
    total = sum(parts.values())
    if not total:
        return ["  no time was accounted for yet"]
    rows = [(name, duration(part), percent(part / total)) for name, part in parts.items()]
    rows.append(("all", duration(total), ""))
    done_again = f"  Goodput {job_summary.goodput(job)}."
    return [*table(("SPENT ON", "TIME", "SHARE"), rows, "  "), done_again]


def _conditions(job: JobRecord, now: datetime, width: int) -> list[str]:
    shown = [f"  {line}" for line in job_summary.condition_table(job, now)]
    sentences = bullets(job_summary.condition_sentences(job), width)
    return [*shown, *sentences] if job.status.conditions else []


def _recoveries(job: JobRecord, now: datetime, width: int) -> list[str]:
    """A row for each, and its message below."""
    recoveries = job.status.recoveries
    if not recoveries:
        return []
    rows = [_recovery(r, now) for r in recoveries]
    header, *lines = table(_RECOVERY_HEADER, rows, "  ")
    shown = [header]
    for line, recovery in zip(lines, recoveries, strict=True):
        shown += [line, *paragraph(_what_happened(recovery), width, "      ")]
    return shown


_RECOVERY_HEADER = ("AGO", "CAUSE", "GEN", "RANKS", "DOWN", "LOST", "RESTORED FROM")


def _recovery(recovery: RecoveryStatus, now: datetime) -> tuple[str, ...]:
    lost = recovery.lost_steps
    return (
        age(time_of(recovery.time), now),
        recovery.cause,
        recovery.generation or NOTHING,
        ranks_changed(recovery),
        short_seconds(recovery.down_seconds),
        NOTHING if lost is None else f"{lost} steps",
        recovery.restored_from,
    )


def ranks_changed(recovery: RecoveryStatus) -> str:
    """How many ranks there were, and are."""
    before, after = recovery.world_size_before, recovery.world_size_after
    if after is None:
        return NOTHING
    return f"{after}" if before in (None, after) else f"{before} -> {after}"


def _what_happened(recovery: RecoveryStatus) -> str:
    where = f" on {recovery.node}" if recovery.node else ""
    pod = (
        f"{recovery.pod}{where}: " if recovery.pod and recovery.pod not in recovery.message else ""
    )
    code = recovery.exit_code
    ended = f" (exit code {code})" if code is not None and str(code) not in recovery.message else ""
    return f"{pod}{recovery.message}{ended}"


def worker_table(job: JobRecord, steps: Mapping[int, int]) -> list[str]:
    """The workers that the status lists; with a column of their steps where any is known."""
    rows = [
        (
            w.index,
            w.state,
            NOTHING if w.rank is None else w.rank,
            *([steps.get(w.index, NOTHING)] if steps else []),
            w.pod,
            w.node or NOTHING,
        )
        for w in job.status.workers
    ]
    if not rows:
        return []
    header = ("WORKER", "STATE", "FIRST RANK", *(["STEP"] if steps else []), "POD", "NODE")
    lines = table(header, rows, "  ")
    more = max(job.status.replicas, job.replicas) - len(rows)
    beyond = f"  ... and {more} more: kubectl get pods -l regroup.dev/job={job.name}"
    return [*lines, beyond] if len(rows) >= 64 and more > 0 else lines
