"""`status`: how a job is, in a few lines or in one, and as an exit code. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from regroup.kubernetes.job_record import JobRecord, notable, time_of
from regroup.kubernetes.quantities import age, ago, clock, count, duration, percent, size
from regroup.kubernetes.text_tables import facts, table
from regroup_operator.api.status import Condition
from regroup_trainer.protocol.message import loss_text, printable

FAILED, SUSPENDED, NOT_TRAINING, UNKNOWN = 3, 4, 5, 6
EXIT_CODES = {
    "Running": 0,
    "Resizing": 0,
    "Succeeded": 0,
    "Failed": FAILED,
    "Suspended": SUSPENDED,
    "Pending": NOT_TRAINING,
    "Starting": NOT_TRAINING,
    "Recovering": NOT_TRAINING,
}
"""Phase -> exit code. 1 is an error, and 2 a wrong command line."""


def exit_code(job: JobRecord) -> int:
    """UNKNOWN until the operator has given a phase."""
    return EXIT_CODES.get(job.phase, UNKNOWN)


@dataclass(frozen=True)
class StatusReport:
    """What `status -o json` shows."""

    namespace: str
    name: str
    phase: str
    message: str
    phase_time: datetime | None
    """Since when it trains, waits or has ended."""
    status_time: datetime | None
    workers: int
    wanted_workers: int
    step: int
    total_steps: int
    loss: float | None
    remaining_seconds: int | None
    checkpoint_step: int | None
    checkpoint_time: datetime | None
    goodput: float
    lost_steps: int
    restarts: int
    exit_code: int


def status_report(job: JobRecord) -> StatusReport:
    """The figures of a status."""
    status = job.status
    return StatusReport(
        namespace=job.namespace,
        name=job.name,
        phase=job.phase,
        message=status.message,
        phase_time=_phase_time(job),
        status_time=job.status_time,
        workers=status.ready_replicas,
        wanted_workers=job.replicas,
        step=status.progress.step,
        total_steps=status.progress.total_steps,
        loss=status.progress.loss,
        remaining_seconds=status.progress.remaining_seconds,
        checkpoint_step=status.checkpoint.last_step,
        checkpoint_time=time_of(status.checkpoint.last_time),
        goodput=status.goodput.ratio,
        lost_steps=status.goodput.lost_steps,
        restarts=status.restart_count,
        exit_code=exit_code(job),
    )


def status_lines(job: JobRecord, now: datetime, width: int, *, wide: bool) -> list[str]:
    """The status for a person; `wide` adds the conditions."""
    since = _phase_time(job)
    phase = f"{job.phase} for {age(since, now)}" if since else job.phase
    lines = facts(
        [
            ("Job", f"{job.name} in namespace {job.namespace}"),
            ("Phase", phase),
            ("Message", message(job)),
            ("Workers", workers(job)),
            ("Progress", progress(job, now)),
            ("Checkpoint", checkpoint(job, now)),
            ("Goodput", goodput(job)),
            ("Status of", ago(job.status_time, now)),
        ],
        width,
    )
    return [*lines, *(["", *condition_table(job, now)] if wide else [])]


def status_line(job: JobRecord, now: datetime) -> str:
    """The status in one line, for -w and --wait: with the reason where it does not train."""
    text = "" if _trains(job) else f": {message(job)}"
    return printable(f"{clock(now)[11:]}  {figures(job)}{text}")


def figures(job: JobRecord) -> str:
    """Phase, workers and step, in a line."""
    status, shown = job.status, job.status.progress
    step = f"step {shown.step}" + (f"/{shown.total_steps}" if shown.total_steps else "")
    parts = [f"{job.phase}, {status.ready_replicas}/{job.replicas} workers", step]
    if _trains(job) and shown.loss is not None:
        parts.append(f"loss {loss_text(shown.loss)}")
    if _trains(job) and shown.remaining_seconds and not job.has_ended:
        parts.append(f"{duration(shown.remaining_seconds)} left")
    return ", ".join(parts)


def _trains(job: JobRecord) -> bool:
    return job.phase in ("Running", "Resizing", "Succeeded")


def message(job: JobRecord) -> str:
    """What the job does, or why not."""
    if not job.has_status:
        return "no operator has looked at this job yet"
    return job.status.message or "none"


def workers(job: JobRecord) -> str:
    """How many train, of how many that are wanted."""
    status, (least, most) = job.status, job.bounds
    elastic = f" (elastic, {least} to {most})" if least != most else ""
    spares = f", {count(status.ready_spares, 'spare')}" if status.ready_spares else ""
    ranks = f": {count(status.world_size, 'rank')}" if status.world_size else ""
    training = "" if job.has_ended else " training"
    return f"{status.ready_replicas} of {job.replicas}{elastic}{training}{ranks}{spares}"


def progress(job: JobRecord, now: datetime) -> str:
    """The newest step that was reported."""
    shown = job.status.progress
    step = f"step {shown.step:,}"
    if shown.total_steps:
        step += f" of {shown.total_steps:,} ({shown.percentage}%)"
    more = [step]
    if shown.loss is not None:
        more.append(f"loss {loss_text(shown.loss)}")
    if shown.tokens_per_second:
        more.append(f"{shown.tokens_per_second:,.0f} tokens/s")
    if shown.samples_per_second:
        more.append(f"{shown.samples_per_second:,.0f} samples/s")
    if shown.steps_per_second:
        more.append(f"{shown.steps_per_second:,.3g} steps/s")
    if shown.remaining_seconds is not None and not job.has_ended:
        more.append(f"{duration(shown.remaining_seconds)} left")
    if updated := time_of(shown.updated_time):
        more.append(f"made {ago(updated, now)}")
    return ", ".join(more)


def checkpoint(job: JobRecord, now: datetime) -> str:
    """Step, age and size of the newest checkpoint; "none yet" before the first."""
    saved = job.status.checkpoint
    if saved.last_step is None:
        return "none yet"
    more = [f"step {saved.last_step:,}", ago(time_of(saved.last_time), now)]
    if saved.size_bytes is not None:
        more.append(size(saved.size_bytes))
    return ", ".join(more)


def goodput(job: JobRecord) -> str:
    """The share of time that counted, and what was lost."""
    status = job.status
    return (
        f"{percent(status.goodput.ratio)}, {count(status.restart_count, 'restart')}, "
        f"{count(status.goodput.lost_steps, 'step')} done again"
    )


def condition_table(job: JobRecord, now: datetime) -> list[str]:
    """The lines of a table with all conditions, and for how long each has been so."""
    rows = [
        (c.type, c.status, c.reason, age(time_of(c.last_transition_time), now))
        for c in job.status.conditions
    ]
    return table(("CONDITION", "STATUS", "REASON", "FOR"), rows)


def condition_sentences(job: JobRecord) -> list[str]:
    """What the conditions say that show a fault."""
    return [condition_sentence(one) for one in notable(job.status.conditions)]


def condition_sentence(condition: Condition) -> str:
    """A condition in a line."""
    return f"{condition.type}={condition.status}, {condition.reason}: {condition.message}"


def _phase_time(job: JobRecord) -> datetime | None:
    if job.has_ended:
        return time_of(job.status.completion_time) or job.since("Complete")
    return job.since("Suspended" if job.phase == "Suspended" else "Ready")
