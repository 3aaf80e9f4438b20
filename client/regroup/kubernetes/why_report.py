"""`why`: the reason that the operator gives, and what supports it. Pure.

The operator judges. Only where it is away, or has not looked yet, `own_judgement` looks at pods and
events itself, and the report says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from regroup.kubernetes import job_summary
from regroup.kubernetes.advice import HEALS, REPEATED_FAILURES, WORKERS_MISSING, advice
from regroup.kubernetes.event_record import EventRecord
from regroup.kubernetes.job_record import JobRecord, notable, time_of
from regroup.kubernetes.own_judgement import own_judgement, reason_of_missing
from regroup.kubernetes.pod_record import NodeRecord, PodRecord, QuotaRecord
from regroup.kubernetes.quantities import age, ago
from regroup.kubernetes.text_tables import bullets, paragraph
from regroup_operator.api.names import STATUS_REFUSED
from regroup_operator.api.resource import KIND, Object

EVENTS_SHOWN = 6
LINES_SHOWN = 3
PODS_SHOWN = 8
RECENT_SECONDS = 3600.0
"""Older events and recoveries are no evidence."""
_NUMBERS = re.compile(r"(?<![\w-])\d+(?![\w-])|(?<=-c)\d+\b|(?<=\d)-\d+\b")
"""Steps, bytes and times, and incarnations of pods; not the numbers of workers and nodes. Events
that differ in nothing else are of one kind.
"""
HAS_ENDED = "no, it has ended"
IT_TRAINS = "it trains"
PATIENCE_SECONDS = 60.0
"""An operator that has not looked at a spec for so long is away."""
REFUSED_SECONDS = 3720.0
"""While a status is refused, the event comes once an hour, with a round a minute late at most."""


@dataclass(frozen=True)
class OperatorSign:
    """Whether the operator is at work."""

    state: Literal["present", "away", "unknown"]
    evidence: str
    """Empty when nothing is known."""


@dataclass(frozen=True)
class Scene:
    """All that is known of a job. What may not be read is missing, and in `gaps`."""

    job: JobRecord
    operator: OperatorSign
    pods: Sequence[PodRecord] = ()
    events: Sequence[EventRecord] = ()
    """Of the job and its pods, newest first."""
    nodes: Sequence[NodeRecord] = ()
    quotas: Sequence[QuotaRecord] = ()
    gaps: Sequence[str] = ()
    operator_namespace: str = "regroup-system"


@dataclass(frozen=True)
class WhyReport:
    """What `why -o json` shows."""

    namespace: str
    name: str
    trains: bool
    reason: str
    """One word."""
    message: str
    """One sentence."""
    judged_by: Literal["operator", "kubectl trainingjob"]
    heals: str
    what_to_do: str
    evidence: tuple[str, ...]
    not_seen: tuple[str, ...]
    """What could not be read, and why."""


def operator_sign(
    job: JobRecord,
    lease: Object | None,
    pods: Sequence[PodRecord],
    events: Sequence[EventRecord],
    now: datetime,
) -> OperatorSign:
    """From the operator's Lease, where it can be read; else from what it has left undone, unless
    that is so since its status is refused.
    """
    if lease is not None:
        return _sign_of_lease(lease, now)
    if _refusal(job, events, now) is not None:
        return OperatorSign("present", f"its event {STATUS_REFUSED} shows that it is at work")
    for time, undone in _left_undone(job, pods):
        if time is not None and (now - time).total_seconds() > PATIENCE_SECONDS:
            return OperatorSign("away", f"{undone}, {ago(time, now)}")
    return OperatorSign("unknown", "")


def _left_undone(
    job: JobRecord, pods: Sequence[PodRecord]
) -> Iterator[tuple[datetime | None, str]]:
    """What an operator would have written into the status, and since when."""
    if not job.has_status:
        yield job.created, "the job has no status, and was created"
    elif job.status.observed_generation < job.generation:
        yield job.spec_time, "the status is older than the newest spec, which was written"
    for pod in pods:
        end = pod.end.time if pod.end else None
        if end is not None and job.status_time is not None and end > job.status_time:
            yield end, f"the status is older than the end of pod {pod.name}"


def _refusal(job: JobRecord, events: Sequence[EventRecord], now: datetime) -> EventRecord | None:
    """The operator's event that the API server refuses the job's status, unless the status was
    written since.
    """
    for event in events:
        if event.reason != STATUS_REFUSED or event.kind != KIND or event.time is None:
            continue
        lasts = (now - event.time).total_seconds() < REFUSED_SECONDS
        if lasts and (job.status_time is None or job.status_time < event.time):
            return event
    return None


def _sign_of_lease(lease: Object, now: datetime) -> OperatorSign:
    spec = lease.get("spec") or {}
    renewed, holder = time_of(spec.get("renewTime")), str(spec.get("holderIdentity") or "")
    allowed = spec.get("leaseDurationSeconds")
    limit = float(allowed if isinstance(allowed, int) else 15) * 2
    if renewed is None or not holder:
        return OperatorSign("away", "nobody holds the operator's Lease")
    if (now - renewed).total_seconds() > limit:
        return OperatorSign("away", f"the operator's Lease was renewed {ago(renewed, now)}")
    return OperatorSign("present", f"the operator ({holder}) is at work")


def explain(scene: Scene, now: datetime) -> WhyReport:
    """Why the job does not train, or that it does."""
    job = scene.job
    judge: Literal["operator", "kubectl trainingjob"] = "operator"
    if scene.operator.state == "away" and not job.has_ended:
        judge = "kubectl trainingjob"
        reason, message = own_judgement(scene.pods, scene.events, now)
        heals, what_to_do = HEALS["no"], _OPERATOR_AWAY.format(scene.operator_namespace)
    else:
        reason, message, heals, what_to_do = _by_the_operator(scene, now)
    message, _, written = message.partition("\n")
    return WhyReport(
        namespace=job.namespace,
        name=job.name,
        trains=judge == "operator" and job.status.holds("Ready"),
        reason=reason,
        message=message,
        judged_by=judge,
        heals=heals,
        what_to_do=what_to_do,
        evidence=(*_evidence(scene, message, now), *_written(written, message)),
        not_seen=tuple(scene.gaps),
    )


_OPERATOR_AWAY = (
    "start the operator again (kubectl get pods -n {}): without it no pod is replaced; "
    "workers that train go on"
)


def _by_the_operator(scene: Scene, now: datetime) -> tuple[str, str, str, str]:
    """Reason, message, whether it heals, what to do."""
    job = scene.job
    ready = job.status.condition("Ready")
    for end in ("Failed", "Complete"):
        condition = job.status.condition(end)
        if condition is not None and condition.status == "True":
            todo = _AFTER_FAILURE if end == "Failed" else "nothing: the job is done"
            return condition.reason, condition.message, HAS_ENDED, todo
    refusal = _refusal(job, scene.events, now)
    if refusal is not None:
        return STATUS_REFUSED, refusal.message, HEALS["no"], _STATUS_REFUSED
    if ready is None:
        return _not_observed(scene, now)
    if ready.status == "True":
        fault = _fault(job)
        if fault is None:
            return ready.reason, job_summary.message(job), IT_TRAINS, "nothing"
        reason, message = fault
    else:
        reason, message = ready.reason, ready.message or job.status.message
        if advice(reason, job.name).heals != "no":  # it waits for the next try, which fails as well
            reason, message = _repeated_failures(job) or (reason, message)
    if reason == WORKERS_MISSING:
        cause = reason_of_missing(job.replicas, scene.pods, scene.quotas)
    else:
        cause = reason
    found = advice(cause or reason, job.name, job.status.suspected_nodes)
    return reason, message, HEALS[found.heals], found.what_to_do


def _repeated_failures(job: JobRecord) -> tuple[str, str] | None:
    degraded = job.status.condition("Degraded")
    if degraded is None or (degraded.status, degraded.reason) != ("True", REPEATED_FAILURES):
        return None
    return degraded.reason, degraded.message


def _not_observed(scene: Scene, now: datetime) -> tuple[str, str, str, str]:
    """Of a job without a status: it is new, or the operator may not write one."""
    created = scene.job.created
    if created is None or (now - created).total_seconds() <= PATIENCE_SECONDS:
        message = "no operator has looked at this job yet"
        return "NotObserved", message, HEALS["maybe"], "look again in a minute"
    message = f"the operator is at work, and this job, created {ago(created, now)}, has no status"
    return "NotObserved", message, HEALS["no"], _NO_STATUS.format(scene.operator_namespace)


_STATUS_REFUSED = (
    "mend what the API server's answer names: give the operator back its right to patch "
    "trainingjobs/status (the chart's ClusterRole), change the admission policy that refuses it, "
    "or install the definition of TrainingJobs of the operator's release; it then goes on by itself"
)
_NO_STATUS = (
    "look for this job in the operator's log (kubectl logs -n {} -l "
    "app.kubernetes.io/name=regroup-operator): it may lack the right to patch trainingjobs/status, "
    "or an admission policy may refuse it"
)


def _fault(job: JobRecord) -> tuple[str, str] | None:
    """What is wrong with a job that trains: reason and message."""
    for condition in notable(job.status.conditions):
        if condition.type in ("Degraded", "Checkpointed") and condition.reason != "NoCheckpoint":
            return condition.reason, condition.message
    return None


_AFTER_FAILURE = (
    "mend what the message names, then delete the job and create it again; its checkpoints stay "
    "on the volume"
)


# --- evidence -------------------------------------------------------------------------------------


def _evidence(scene: Scene, message: str, now: datetime) -> Iterator[str]:
    """Each with its source in front, the nearest to the job first."""
    job = scene.job
    yield f"status: {job_summary.figures(job)}; written {ago(job.status_time, now)}"
    if scene.operator.evidence:
        yield f"operator: {scene.operator.evidence}"
    if job.unreadable:
        yield f"status: cannot be read: {', '.join(job.unreadable)} (another release wrote it)"
    yield from _conditions(job, message)
    yield from _hindrance(job, message)
    yield from _last_recovery(job, now)
    yield from _pods(scene.pods, now)
    for node in scene.nodes:
        yield from (f"node {node.name}: {problem}" for problem in node.problems)
    for quota in scene.quotas:
        yield from (f"quota {quota.name}: used up: {what}" for what in quota.used_up)
    yield from _events(scene.events, now)


def _conditions(job: JobRecord, message: str) -> Iterator[str]:
    """What each adds to the message and to those before it. What is wrong with a job that does not
    train is that of Ready, unless it fails again and again.
    """
    ready, said = job.status.condition("Ready"), message
    if _repeated_failures(job) is None and ready is not None:
        said += f"\n{ready.message}"
    for condition in notable(job.status.conditions):
        if _sentence(condition.message) not in said:
            said += f"\n{condition.message}"
            yield f"condition {job_summary.condition_sentence(condition)}"


def _hindrance(job: JobRecord, message: str) -> Iterator[str]:
    """What disturbs a job that trains, beside the fault that its message is about."""
    doing, _, why = job.status.message.partition("; ")
    if job.status.holds("Ready") and why and why not in message and doing not in message:
        yield f"status: {why}"


def _last_recovery(job: JobRecord, now: datetime) -> Iterator[str]:
    for recovery in job.status.recoveries[-1:]:
        time = time_of(recovery.time)
        if time is not None and (now - time).total_seconds() < RECENT_SECONDS:
            where = f" on node {recovery.node}" if recovery.node else ""
            yield f"last recovery, {ago(time, now)}: {recovery.cause}{where}: {recovery.message}"


def _pods(pods: Sequence[PodRecord], now: datetime) -> Iterator[str]:
    problems = [f"pod {pod.name}: {text}" for pod in pods if (text := pod_problem(pod, now))]
    yield from problems[:PODS_SHOWN]
    if len(problems) > PODS_SHOWN:
        yield f"and {len(problems) - PODS_SHOWN} more pods like these"


def pod_problem(pod: PodRecord, now: datetime) -> str:
    """What is wrong with a pod; empty when nothing is."""
    where = f" on node {pod.node}" if pod.node else ""
    if pod.deleting:
        return f"is being deleted{where}"
    if pod.unschedulable and not pod.node:
        return f"has no node for {age(pod.created, now)}: {pod.unschedulable}"
    if pod.waiting_reason:
        detail = f": {pod.waiting_message}" if pod.waiting_message else ""
        return f"{pod.waiting_reason}{where}{detail}{_ended(pod, now)}"
    if pod.phase in ("Pending", "Unknown"):
        return f"{pod.phase} for {age(pod.created, now)}{where}"
    return f"{pod.phase}{where}{_ended(pod, now)}" if pod.failed else ""


def _ended(pod: PodRecord, now: datetime) -> str:
    end, container, last = pod.end, "its container", ""
    if pod.waiting_container and pod.waiting_end is not None:
        end, container = pod.waiting_end, f"container {pod.waiting_container}"
        last = end.last_line_suffix
    if end is None:
        return ""
    when = f" {ago(end.time, now)}" if end.time else ""
    reason = f", {end.reason}" if end.reason and end.reason != "Error" else ""
    return f"; {container} ended with exit code {end.exit_code}{reason}{when}{last}"


def _events(events: Sequence[EventRecord], now: datetime) -> Iterator[str]:
    """Recent warnings, one of each kind, the newest first."""
    kinds: dict[tuple[str, str, str], list[EventRecord]] = {}
    for event in events:
        recent = event.time and (now - event.time).total_seconds() < RECENT_SECONDS
        if event.type == "Warning" and recent:
            kind = (event.reason, event.name, _NUMBERS.sub("", event.message))
            kinds.setdefault(kind, []).append(event)
    for event, *older in list(kinds.values())[:EVENTS_SHOWN]:
        times = f", {event.count} times" if event.count > 1 else ""
        about = f" about {event.kind.lower()} {event.name}" if event.kind != "TrainingJob" else ""
        more = f" (and {len(older)} more like this)" if older else ""
        said = f"{_sentence(event.message)}{more}"
        yield f"event {event.reason}{about}, {ago(event.time, now)}{times}: {said}"


def _written(lines: str, message: str) -> Iterator[str]:
    """What the program that failed has written last, beyond what the message repeats."""
    new = [line for line in lines.splitlines() if line.strip() and line.strip() not in message]
    yield from (f"its program wrote: {line.strip()}" for line in new[-LINES_SHOWN:])


def _sentence(message: str) -> str:
    """A message without the lines of a program that may follow it."""
    return message.partition("\n")[0]


# --- text -----------------------------------------------------------------------------------------


def why_lines(report: WhyReport, width: int) -> list[str]:
    """The report for a person."""
    lines = paragraph(_first_sentence(report), width)
    if report.judged_by != "operator":
        lines += paragraph(
            "(Judged by kubectl trainingjob from pods and events: the operator is away.)", width
        )
    lines += ["", "Evidence:", *(bullets(report.evidence, width) or ["  none"])]
    if report.not_seen:
        lines += ["", "Not seen:", *bullets(report.not_seen, width)]
    if report.heals != IT_TRAINS:
        lines += ["", *paragraph(f"Heals: {report.heals}", width)]
        lines += paragraph(f"Do: {report.what_to_do}", width)
    return lines


def _first_sentence(report: WhyReport) -> str:
    if report.heals == IT_TRAINS:
        return f"{report.name} trains: {report.message.removeprefix('training: ')}"
    if report.judged_by != "operator":
        head = f"{report.name}, without an operator"
    elif report.heals == HAS_ENDED:
        head = f"{report.name} has ended"
    else:
        head = f"{report.name} {'trains, but' if report.trains else 'does not train'}"
    return f"{head}: {report.reason}: {report.message}"
