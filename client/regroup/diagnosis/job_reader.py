"""Runs a command of the trainer in a pod of the moment that has the job's volume read-only.

That needs no worker that runs, and takes no memory from one that does.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from regroup.diagnosis.reader_pod import Reader, UnreadableJobError, reader_of, series_reader_of
from regroup.diagnosis.short_pods import running_pods
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import FORBIDDEN, NOT_FOUND, ClusterError
from regroup.kubernetes.pod_channels import CommandOutput
from regroup.kubernetes.pod_record import PodRecord

READ_SECONDS = 30.0
"""What a command may take whose output is short."""
START_SECONDS = 300.0
"""For the pod to be placed, to pull its image and to mount the volume."""


def checkpoint_reader(api: ClusterApi, namespace: str, name: str, words: Sequence[str]) -> Reader:
    """The reader of a job for a command, as `reader_of` makes it; nothing is created yet. Raises
    ClusterError and UnreadableJobError.
    """
    document, pods = api.job(namespace, name), api.pods(namespace, name)
    return reader_of(document, pods, words, secrets.token_hex(4), datetime.now(UTC))


def series_reader(api: ClusterApi, namespace: str, name: str) -> Reader:
    """As `checkpoint_reader`, for what the job's last coordinator has kept of its course."""
    document, pods = api.job(namespace, name), api.pods(namespace, name)
    return series_reader_of(document, pods, secrets.token_hex(4), datetime.now(UTC))


def run_readers(
    api: ClusterApi, namespace: str, name: str, readers: Sequence[Reader]
) -> list[CommandOutput]:
    """What the commands of some readers of a job write, in the pod of the first one. Raises
    ClusterError and UnreadableJobError.
    """
    with running_reader(api, namespace, name, readers[0]) as pod:
        return [api.run_in_pod(namespace, pod, one.command, READ_SECONDS) for one in readers]


@contextmanager
def running_reader(
    api: ClusterApi, namespace: str, name: str, reader: Reader
) -> Iterator[PodRecord]:
    """Inside, the pod of a job's reader runs. Raises ClusterError and UnreadableJobError."""
    _require_claim(api, namespace, name, reader.claim)
    with running_pods(api, namespace, [reader.body], START_SECONDS) as (pod,):
        yield pod


def _require_claim(api: ClusterApi, namespace: str, job: str, name: str) -> None:
    """Without the right to look, the pod waits for a claim that is gone."""
    try:
        api.claim(namespace, name)
    except ClusterError as error:
        if error.status == NOT_FOUND:
            raise UnreadableJobError(
                f"claim {name} of job {job} is gone, and with it the checkpoints: restore it from "
                "a backup"
            ) from None
        if error.status != FORBIDDEN:
            raise
