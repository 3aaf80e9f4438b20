"""The course of a job that rests, as its last coordinator has left it on the volume."""

from __future__ import annotations

from typing import NamedTuple

from regroup.diagnosis.job_reader import checkpoint_reader, run_readers, series_reader
from regroup.diagnosis.reader_pod import UnreadableJobError
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.pod_channels import CommandOutput
from regroup.local.checkpoint_list import LIST_COMMAND
from regroup_operator.api.status import Phase

RESTS: tuple[Phase, ...] = ("Suspended", "Succeeded", "Failed")
"""Phases of a job that has no coordinator, and may have left its series on the volume."""


def may_have_kept_series(job: JobRecord) -> bool:
    """Whether a pod may find the series of this job: it rests, and had a coordinator."""
    return job.phase in RESTS and not job.uses_torchrun and job.status.progress.step > 0


class KeptCourse(NamedTuple):
    """What the volume has of a job that rests."""

    series: str
    """As JSON."""
    checkpoints: CommandOutput | None
    """What lists them; None: it was not asked for."""


def kept_course(
    api: ClusterApi, namespace: str, name: str, *, with_checkpoints: bool
) -> KeptCourse:
    """Read by a pod of the moment. Raises UnreadableJobError where there is no series, else
    ClusterError.
    """
    readers = [series_reader(api, namespace, name)]
    if with_checkpoints:
        readers.append(checkpoint_reader(api, namespace, name, LIST_COMMAND))
    done, *listed = run_readers(api, namespace, name, readers)
    if done.exit_code:
        why, claim = done.stderr.strip().rpartition("\n")[2], readers[0].claim
        raise UnreadableJobError(f"job {name} has left no metrics on claim {claim}: {why}")
    return KeptCourse(done.stdout, listed[0] if listed else None)


def kept_series(api: ClusterApi, namespace: str, name: str) -> str:
    """The series alone."""
    return kept_course(api, namespace, name, with_checkpoints=False).series
