"""How far jobs are this second, as the agent of rank 0 exports it. Statuses are up to 30 s old."""

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
from regroup_operator.api.timestamps import format_time
from regroup_trainer.protocol.environment import AGENT_METRICS_PORT

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


def _live(api: PortReader, job: JobRecord, now: datetime) -> JobRecord | None:
    pod = next((worker.pod for worker in job.status.workers if worker.rank == 0), None)
    if pod is None or job.uses_torchrun or job.phase not in ("Running", "Resizing"):
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
