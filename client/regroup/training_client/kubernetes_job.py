"""A job on a cluster, as the user of the kubeconfig reaches it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from regroup.diagnosis.job_reader import (
    READ_SECONDS,
    checkpoint_reader,
    run_readers,
    running_reader,
)
from regroup.diagnosis.kept_series import RESTS, kept_series
from regroup.diagnosis.reader_pod import LIFE_SECONDS, UnreadableJobError, with_step
from regroup.kubernetes.cluster_api import ClusterApi, LogQuery
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.job_record import JobRecord, read_job
from regroup.kubernetes.job_watch import Clock, follow
from regroup.kubernetes.pod_channels import CommandOutput, CommandStream
from regroup.kubernetes.pod_logs import Choice, Follower, read_logs
from regroup.kubernetes.pod_record import PodRecord, newest_running, read_pods
from regroup.local.checkpoint_list import (
    EXPORT_COMMAND,
    LIST_COMMAND,
    SavedCheckpoint,
    directory_of,
    only_newest,
    worker_command,
)
from regroup.training_client.client_errors import TrainingClientError
from regroup.training_client.job import Job, checkpoints_of, points_of, require_workers
from regroup.training_client.weight_stream import ProgramEnd, WeightStream
from regroup_operator.api.names import COORDINATOR, WORKER
from regroup_operator.api.status import TrainingJobStatus
from regroup_trainer.protocol.environment import COORDINATOR_PORT
from regroup_trainer.protocol.job_status import SERIES_PATH, SeriesPoint

log = logging.getLogger("regroup")


@dataclass
class KubernetesJob(Job):
    """A TrainingJob of a namespace."""

    api: ClusterApi
    namespace: str
    name: str
    code: str = ""

    @property
    def status(self) -> TrainingJobStatus:
        """As the operator has written it."""
        return self._record().status

    def logs(self, *, follow: bool = False, rank: int | None = None) -> Iterator[str]:
        """The logs of its workers' pods, as long as these are there."""
        choice, query = Choice(rank), LogQuery(follow=follow)
        if not follow:
            pods = choice.pods(self._record(), self._pods())
            return read_logs(self.api, self.namespace, pods, choice, query, log.warning)
        return Follower(
            self.api, lambda: (self._record(), self._pods()), choice, query, log.warning
        ).lines()

    def metrics(self) -> list[SeriesPoint]:
        """Through the API server, as `kubectl port-forward` reaches the coordinator's pod. When the
        job rests, from a pod of the moment, as weights.
        """
        pod = self._running(COORDINATOR)
        if pod is None:
            if (phase := self.status.phase) in RESTS:
                with _as_client_error():
                    return points_of(kept_series(self.api, self.namespace, self.name))
            raise TrainingClientError(
                f"metrics: job {self.name} has no coordinator that runs ({phase}): "
                "they can be read while it trains, and after that"
            )
        text = self.api.get_of_pod(
            self.namespace, pod.name, COORDINATOR_PORT, SERIES_PATH, READ_SECONDS
        )
        return points_of(text)

    def scale(self, workers: int) -> None:
        """Set `spec.replicas`."""
        require_workers(workers)
        self.api.scale_job(self.namespace, self.name, workers, dry_run=False)

    def suspend(self) -> None:
        """Set `spec.suspend`."""
        self._set_suspend(True)

    def resume(self) -> None:
        """Clear `spec.suspend`."""
        self._set_suspend(False)

    def checkpoints(self) -> list[SavedCheckpoint]:
        """All, as a worker's pod lists them, or a pod of the moment while the job rests; from the
        status the newest alone where there is no such pod.
        """
        status, pod = self.status, self._running(WORKER)
        directory = directory_of(status.checkpoint)
        if directory is not None and pod is not None:
            words = worker_command(pod.command, directory)
            done = self.api.run_in_pod(self.namespace, pod, words, READ_SECONDS)
            return _listed(done, f"pod {pod.name}")
        if directory is not None and status.phase in RESTS:
            try:
                reader = checkpoint_reader(self.api, self.namespace, self.name, LIST_COMMAND)
                (done,) = run_readers(self.api, self.namespace, self.name, [reader])
                return _listed(done, "its reader")
            except ClusterError as error:  # who may read jobs may not always make pods
                log.warning("checkpoints: only the newest is shown: %s", error)
        return only_newest(status.checkpoint)

    @contextmanager
    def _weights(self, step: int | None) -> Iterator[WeightStream]:
        """From a pod of the moment that has the claim mounted, and nobody else's rights."""
        words = with_step(EXPORT_COMMAND, step)
        with _as_client_error():
            reader = checkpoint_reader(self.api, self.namespace, self.name, words)
            with (
                running_reader(self.api, self.namespace, self.name, reader) as pod,
                self.api.stream_from_pod(
                    self.namespace, pod, reader.command, LIFE_SECONDS
                ) as stream,
            ):
                yield WeightStream(f"pod {pod.name}", stream.chunks(), partial(_end_of, stream))

    def delete(self) -> None:
        """Its pods, and the ConfigMap with its code, go with it."""
        self.api.delete_job(self.namespace, self.name)

    def _statuses(self, timeout: float | None) -> Iterator[TrainingJobStatus]:
        clock = Clock(math.inf if timeout is None else time.monotonic() + timeout)
        for document in follow(self.api, self.namespace, self.name, log.warning, clock):
            job = read_job(document)
            yield job.status
            if problem := job.refusal:
                raise TrainingClientError(f"job {self.name} does not start: {problem}")

    def _set_suspend(self, value: bool) -> None:
        patch = {"spec": {"suspend": value}}
        self.api.patch_job(self.namespace, self.name, patch, dry_run=False)

    def _record(self) -> JobRecord:
        return read_job(self.api.job(self.namespace, self.name))

    def _pods(self) -> list[PodRecord]:
        return read_pods(self.api.pods(self.namespace, self.name))

    def _running(self, role: str) -> PodRecord | None:
        return newest_running(self._pods(), role)


@contextmanager
def _as_client_error() -> Iterator[None]:
    """Raises what cannot be read of a job as a TrainingClientError."""
    try:
        yield
    except UnreadableJobError as error:
        raise TrainingClientError(str(error)) from None


def _listed(done: CommandOutput, where: str) -> list[SavedCheckpoint]:
    """What the command has listed. Raises TrainingClientError."""
    if done.exit_code:
        reason = " ".join(done.stderr.split()) or f"exit code {done.exit_code}"
        raise TrainingClientError(f"checkpoints: {where} cannot list them: {reason}")
    return checkpoints_of(done.stdout)


def _end_of(stream: CommandStream) -> ProgramEnd:
    """How a command has ended whose output was read."""
    output = stream.output
    return ProgramEnd(output.exit_code, output.stderr) if output else ProgramEnd(0, "")
