"""How far jobs are this second, as the agent of rank 0 and the coordinator export it, and each
worker, as the coordinator knows it. What changes with every step is up to 30 s old in statuses, and
older where many jobs train.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from regroup.kubernetes.cluster_errors import FORBIDDEN, ClusterError
from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.top_table import Mark, Marks, marks_since
from regroup_operator.api import names
from regroup_operator.api.status import ProgressStatus
from regroup_operator.api.timestamps import format_time
from regroup_trainer.protocol.environment import AGENT_METRICS_PORT, COORDINATOR_PORT
from regroup_trainer.protocol.job_status import SERIES_PATH, STEPS_PATH, Series, WorkerSteps
from regroup_trainer.protocol.ledger import Ledger

T = TypeVar("T")
SECONDS = 3.0
"""What one pod may take. A job whose pods take longer is shown by its status."""
AT_ONCE = 16
_RATES = ("tokens_per_second", "samples_per_second")
"""A job has one of them."""
_SERIES = re.compile(
    rf"^trainingjob_(step|loss|world_size|lost_work_seconds_total|{'|'.join(_RATES)})"
    r"\{[^}]*\} (\S+)$",
    re.MULTILINE,
)
_PHASES = re.compile(
    r'^trainingjob_time_seconds_total\{[^}]*phase="(\w+)"[^}]*\} (\S+)$', re.MULTILINE
)


@dataclass(frozen=True)
class LiveSteps:
    """How far workers are, as far as it can be read."""

    of_workers: Mapping[int, int] = field(default_factory=dict)
    """Worker -> its last step, of those that have a rank."""
    refusal: str = ""
    """Which right the user lacks to read them; empty: none is known to be missing."""


class PortReader(Protocol):
    """What is needed of ClusterApi."""

    def get_of_pod(self, namespace: str, pod: str, port: int, path: str, seconds: float) -> str:
        """What a port of a pod answers. Raises ClusterError."""


def with_live_progress(
    api: PortReader, jobs: Sequence[JobRecord], now: datetime
) -> tuple[list[JobRecord], set[tuple[str, str]]]:
    """The jobs with progress, ranks and goodput of this second where these can be had, and which
    jobs these are. All else of a status is written as soon as it changes.
    """
    found = _of_each(jobs, lambda job: _live(api, job, now))
    live = {(job.namespace, job.name) for job in found if job is not None}
    return [new or old for new, old in zip(found, jobs, strict=True)], live


def kept_marks(api: PortReader, jobs: Sequence[JobRecord]) -> Marks:
    """The steps of the last moments, as the coordinators of jobs that train have kept them: a first
    look has a speed by them. To be read before the live progress, which is further then.
    """
    asked = [job for job in jobs if _trains(job) and not job.status.progress.steps_per_second]
    found = _of_each(asked, lambda job: _kept_marks(api, job))
    return {(job.namespace, job.name): kept for job, kept in zip(asked, found, strict=True)}


def _kept_marks(api: PortReader, job: JobRecord) -> tuple[Mark, ...]:
    """Since the job trains without a pause; empty where they cannot be had."""
    try:
        points = Series.model_validate_json(_of_coordinator(api, job, SERIES_PATH)).points
        marks = [(point.step, datetime.fromtimestamp(point.time, UTC)) for point in points]
    except (ClusterError, ValueError, OverflowError, OSError):
        return ()
    return marks_since(job.since("Ready"), marks)


def live_steps(api: PortReader, job: JobRecord) -> LiveSteps:
    """The steps as the coordinator knows them; none where they cannot be had."""
    if job.status.coordinator_term == 0 or not _trains(job):
        return LiveSteps()
    try:
        workers = WorkerSteps.model_validate_json(_of_coordinator(api, job, STEPS_PATH)).workers
        return LiveSteps({one.index: one.step for one in workers})
    except ClusterError as error:
        return LiveSteps(refusal=str(error) if error.status == FORBIDDEN else "")
    except ValueError:  # of a release without it, too
        return LiveSteps()


def _of_each(jobs: Sequence[JobRecord], read: Callable[[JobRecord], T]) -> list[T]:
    """What is read of each job, of some at once."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        return list(threads.map(read, jobs))


def _of_coordinator(api: PortReader, job: JobRecord, path: str) -> str:
    """What the job's coordinator answers. Raises ClusterError."""
    pod = names.coordinator(job.name, job.status.coordinator_term)
    return api.get_of_pod(job.namespace, pod, COORDINATOR_PORT, path, SECONDS)


def _trains(job: JobRecord) -> bool:
    return not job.uses_torchrun and job.phase in ("Running", "Resizing")


def _live(api: PortReader, job: JobRecord, now: datetime) -> JobRecord | None:
    pod = next((worker.pod for worker in job.status.workers if worker.rank == 0), None)
    if pod is None or not _trains(job):
        return None
    try:
        of_rank_0 = api.get_of_pod(job.namespace, pod, AGENT_METRICS_PORT, "/metrics", SECONDS)
        of_job = _of_coordinator(api, job, "/metrics")
        changes = {"progress": _progress(job, of_rank_0, now), **_ranks_and_goodput(job, of_job)}
    except (ClusterError, ValueError, OverflowError, KeyError):
        return None
    return replace(job, status=job.status.model_copy(update=changes))


def _progress(job: JobRecord, metrics: str, now: datetime) -> ProgressStatus:
    values = _values(metrics)
    changes = {
        "step": max(0, int(values["step"])),
        "loss": _finite(values.get("loss")),
        **{rate: _finite(values.get(rate)) for rate in _RATES},
        "updated_time": format_time(now),
    }
    return job.status.progress.model_copy(update=changes)


def _ranks_and_goodput(job: JobRecord, metrics: str) -> dict[str, object]:
    values = _values(metrics)
    account = Ledger(
        seconds={phase: float(value) for phase, value in _PHASES.findall(metrics)},
        lost_work_seconds=values.get("lost_work_seconds_total", 0.0),
    )
    goodput = job.status.goodput.model_copy(update={"ratio": account.goodput_ratio})
    return {"world_size": max(0, int(values["world_size"])), "goodput": goodput}


def _values(metrics: str) -> dict[str, float]:
    return {name: float(value) for name, value in _SERIES.findall(metrics)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
