"""The course of a job that rests, as its last coordinator has left it on the volume."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime

from regroup.diagnosis.reader_pod import UnreadableJobError, series_reader_of
from regroup.diagnosis.short_pods import running_pods
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.job_record import JobRecord
from regroup_operator.api.status import Phase

RESTS: tuple[Phase, ...] = ("Suspended", "Succeeded", "Failed")
"""Phases of a job that has no coordinator, and may have left its series on the volume."""
START_SECONDS = 300.0
"""For the pod that reads to be placed, to pull its image and to mount the volume."""
READ_SECONDS = 30.0
"""What the pod may take to answer."""
NOT_FOUND, FORBIDDEN = 404, 403


def may_have_kept_series(job: JobRecord) -> bool:
    """Whether a pod may find the series of this job: it rests, and had a coordinator."""
    return job.phase in RESTS and not job.uses_torchrun and job.status.progress.step > 0


def kept_series(api: ClusterApi, namespace: str, name: str) -> str:
    """The series as JSON, read by a pod of the moment. Raises UnreadableJobError where there is
    none, else ClusterError.
    """
    document = api.job(namespace, name)
    pods, now = api.pods(namespace, name), datetime.now(UTC)
    reader = series_reader_of(document, pods, secrets.token_hex(4), now)
    require_claim(api, namespace, name, reader.claim)
    with running_pods(api, namespace, [reader.body], START_SECONDS) as (pod,):
        done = api.run_in_pod(namespace, pod, reader.command, READ_SECONDS)
    if done.exit_code:
        why = done.stderr.strip().rpartition("\n")[2]
        raise UnreadableJobError(f"job {name} has left no metrics on claim {reader.claim}: {why}")
    return done.stdout


def require_claim(api: ClusterApi, namespace: str, job: str, claim: str) -> None:
    """Raises UnreadableJobError for one that is gone; without the right to look, it waits."""
    try:
        api.claim(namespace, claim)
    except ClusterError as error:
        if error.status == NOT_FOUND:
            raise UnreadableJobError(
                f"claim {claim} of job {job} is gone, and with it the checkpoints: "
                "restore it from a backup"
            ) from None
        if error.status != FORBIDDEN:
            raise
