"""The course of a job that rests, as its last coordinator has left it on the volume."""

from __future__ import annotations

from regroup.diagnosis.job_reader import running_reader, series_reader
from regroup.diagnosis.reader_pod import UnreadableJobError
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.job_record import JobRecord
from regroup_operator.api.status import Phase

RESTS: tuple[Phase, ...] = ("Suspended", "Succeeded", "Failed")
"""Phases of a job that has no coordinator, and may have left its series on the volume."""
READ_SECONDS = 30.0
"""What the pod may take to answer."""


def may_have_kept_series(job: JobRecord) -> bool:
    """Whether a pod may find the series of this job: it rests, and had a coordinator."""
    return job.phase in RESTS and not job.uses_torchrun and job.status.progress.step > 0


def kept_series(api: ClusterApi, namespace: str, name: str) -> str:
    """The series as JSON, read by a pod of the moment. Raises UnreadableJobError where there is
    none, else ClusterError.
    """
    reader = series_reader(api, namespace, name)
    with running_reader(api, namespace, name, reader) as pod:
        done = api.run_in_pod(namespace, pod, reader.command, READ_SECONDS)
    if done.exit_code:
        why = done.stderr.strip().rpartition("\n")[2]
        raise UnreadableJobError(f"job {name} has left no metrics on claim {reader.claim}: {why}")
    return done.stdout
