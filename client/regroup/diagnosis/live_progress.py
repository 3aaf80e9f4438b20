"""How far jobs are this second, as the agent of rank 0 exports it, and each worker, as the
coordinator knows it. Statuses are up to 30 s old.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.job_record import JobRecord
from regroup_operator.api import names
from regroup_operator.api.timestamps import format_time
from regroup_trainer.protocol.environment import AGENT_METRICS_PORT, COORDINATOR_PORT
from regroup_trainer.protocol.job_status import STEPS_PATH, WorkerSteps

SECONDS = 3.0
"""What one job may take. One that takes longer is shown by its status."""
AT_ONCE = 16
_RATES = ("tokens_per_second", "samples_per_second")
"""A job has one of them."""
_SERIES = re.compile(
    rf"^trainingjob_(step|loss|{'|'.join(_RATES)})\{{[^}}]*\}} (\S+)$", re.MULTILINE
)


class PortReader(Protocol):
    """What is needed of ClusterApi."""

    def get_of_pod(self, namespace: str, pod: str, port: int, path: str, seconds: float) -> str:
        """What a port of a pod answers. Raises ClusterError."""


def with_live_progress(
    api: PortReader, jobs: Sequence[JobRecord], now: datetime
) -> tuple[list[JobRecord], set[tuple[str, str]]]:
    """The jobs with the progress of this second where that can be had, and which these are."""
    if not jobs:
        return [], set()
    with ThreadPoolExecutor(min(AT_ONCE, len(jobs))) as threads:
        found = list(threads.map(lambda job: _live(api, job, now), jobs))
    live = {(job.namespace, job.name) for job in found if job is not None}
    return [new or old for new, old in zip(found, jobs, strict=True)], live


def live_steps(api: PortReader, job: JobRecord) -> dict[int, int]:
    """Worker -> its last step, of those that have a rank; empty where that cannot be had."""
    term = job.status.coordinator_term
    if term == 0 or not _trains(job):
        return {}
    pod = names.coordinator(job.name, term)
    try:
        text = api.get_of_pod(job.namespace, pod, COORDINATOR_PORT, STEPS_PATH, SECONDS)
        return {one.index: one.step for one in WorkerSteps.model_validate_json(text).workers}
    except (ClusterError, ValueError):  # of a release without it, too
        return {}


def _trains(job: JobRecord) -> bool:
    return not job.uses_torchrun and job.phase in ("Running", "Resizing")


def _live(api: PortReader, job: JobRecord, now: datetime) -> JobRecord | None:
    pod = next((worker.pod for worker in job.status.workers if worker.rank == 0), None)
    if pod is None or not _trains(job):
        return None
    try:
        text = api.get_of_pod(job.namespace, pod, AGENT_METRICS_PORT, "/metrics", SECONDS)
        values = {name: float(value) for name, value in _SERIES.findall(text)}
        step = int(values["step"])
    except (ClusterError, ValueError, OverflowError, KeyError):
        return None
    changes = {
        "step": max(0, step),
        "loss": _finite(values.get("loss")),
        **{rate: _finite(values.get(rate)) for rate in _RATES},
        "updated_time": format_time(now),
    }
    progress = job.status.progress.model_copy(update=changes)
    return replace(job, status=job.status.model_copy(update={"progress": progress}))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
