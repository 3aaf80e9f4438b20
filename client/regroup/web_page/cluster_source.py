"""The jobs of a cluster, as far as the user of the kubeconfig may read them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regroup.diagnosis.kept_series import kept_course, may_have_kept_series
from regroup.diagnosis.live_progress import live_steps, with_live_progress
from regroup.kubernetes.cluster_api import ClusterApi, LogQuery
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.event_record import EventRecord
from regroup.kubernetes.job_record import JobRecord, read_job
from regroup.kubernetes.pod_channels import CommandOutput
from regroup.kubernetes.pod_logs import Choice, read_logs
from regroup.kubernetes.pod_record import PodRecord, newest_running, read_pods
from regroup.kubernetes.scene import events_of_job
from regroup.local.checkpoint_list import (
    SavedCheckpoint,
    directory_of,
    error_of,
    only_newest,
    read_list,
    worker_command,
)
from regroup.local.display import without_escapes
from regroup.web_page.job_source import (
    CheckpointView,
    JobView,
    LogTail,
    NoSuchJobError,
    SourceError,
    WorkerRow,
    ranks_text,
)
from regroup.web_page.page_data import LONGEST_LINE, MOST_LINES, cut
from regroup_operator.api.names import COORDINATOR, WORKER
from regroup_trainer.protocol.environment import COORDINATOR_PORT
from regroup_trainer.protocol.job_status import SERIES_PATH, Series, SeriesPoint

POD_SECONDS = 15.0
"""What a pod may take to answer."""
MOST_PODS = 16
"""Pods whose logs are read for one look."""
MOST_LOG_BYTES = 4 * 1024 * 1024
"""Of each of them."""
MOST_KEPT = 16
"""Jobs whose series from the volume are remembered."""
READS_VOLUME = "Read loss and checkpoints from the volume"
"""The button of the page that has `kept_series` read."""
_IDENTIFIER = re.compile(r"([a-z0-9][-a-z0-9]{0,62})/([a-z0-9][-.a-z0-9]{0,252})", re.ASCII)


@dataclass(frozen=True)
class _Kept:
    """What the volume of a job that rests had."""

    rest: object
    """Which rest of the job it was."""
    points: Sequence[SeriesPoint]
    checkpoints: CommandOutput | None
    """What lists them; None before the first one."""


class ClusterSource:
    """The TrainingJobs of a namespace, or of all."""

    def __init__(self, api: ClusterApi, namespace: str | None) -> None:
        self._api = api
        self._namespace = namespace
        where = "all namespaces" if namespace is None else f"namespace {namespace}"
        self.title = f"TrainingJobs in {where}"
        self._kept: dict[str, _Kept] = {}
        """By identifier; the oldest first."""

    def jobs(self) -> dict[str, JobRecord]:
        """As `get` lists them, by `namespace/name`."""
        found = (read_job(document) for document in self._api.jobs(self._namespace))
        return {f"{job.namespace}/{job.name}": job for job in found}

    def view(self, identifier: str) -> JobView:
        """As `describe` shows it, with the progress of this second and the steps of workers where
        ranks and coordinator can be asked for them.
        """
        namespace, name = self._place(identifier)
        seen = read_job(self._api.job(namespace, name))
        (job,), _ = with_live_progress(self._api, [seen], self._api.now())
        left_out = max(0, job.status.replicas - len(job.status.workers))
        events = self._events(job)
        steps = live_steps(self._api, job)
        note = f"their steps are not shown: {steps.refusal}" if steps.refusal else ""
        rows = worker_rows(job, steps.of_workers)
        return JobView(job, rows, left_out, events, may_have_kept_series(job), note)

    def series(self, identifier: str) -> Sequence[SeriesPoint]:
        """From the coordinator's pod, through the API server; while none runs, what `kept_series`
        has found.
        """
        namespace, name = self._place(identifier)
        pod = newest_running(self._pods(namespace, name), COORDINATOR)
        if pod is None:
            return kept.points if (kept := self._remembered(identifier)) else ()
        return _points(
            self._api.get_of_pod(namespace, pod.name, COORDINATOR_PORT, SERIES_PATH, POD_SECONDS)
        )

    def kept_series(self, identifier: str) -> Sequence[SeriesPoint]:
        """By a pod of the moment that has the job's claim, once as long as the job rests. It lists
        the checkpoints too.
        """
        namespace, name = self._place(identifier)
        if (kept := self._remembered(identifier)) and kept.points:
            return kept.points
        job = read_job(self._api.job(namespace, name))
        if (rest := _rest(job)) is None:
            raise SourceError(f"job {name} trains, or has not trained yet")
        has_checkpoint = job.status.checkpoint.last_step is not None
        course = kept_course(self._api, namespace, name, with_checkpoints=has_checkpoint)
        points = _points(course.series)
        self._kept.pop(identifier, None)
        self._kept[identifier] = _Kept(rest, points, course.checkpoints)
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return points

    def _remembered(self, identifier: str) -> _Kept | None:
        """What was read of this rest of the job: it may have trained on since."""
        found = self._kept.get(identifier)
        if found is None or _rest(read_job(self._api.job(*self._place(identifier)))) != found.rest:
            return None
        return found

    def checkpoints(self, identifier: str) -> CheckpointView:
        """All, as a worker's pod lists them, or one of the moment did that `kept_series` made; the
        newest alone where none does, and why.
        """
        job = read_job(self._api.job(*self._place(identifier)))
        newest = job.status.checkpoint
        directory = directory_of(newest)
        if directory is None:
            return CheckpointView(only_newest(newest))
        try:
            if (kept := self._remembered(identifier)) and kept.checkpoints:
                return CheckpointView(_listed(kept.checkpoints, "its reader"))
            return CheckpointView(self._listed_by_worker(job, directory))
        except (ClusterError, SourceError) as error:  # who may read jobs may not always reach pods
            note = f"only the newest is shown: {error}"
            return CheckpointView(only_newest(newest), note)

    def _listed_by_worker(self, job: JobRecord, directory: str) -> Sequence[SavedCheckpoint]:
        """What a worker's pod lists. Raises ClusterError or SourceError."""
        pod = newest_running(self._pods(job.namespace, job.name), WORKER)
        if pod is None:
            hint = f'; "{READS_VOLUME}" lists them' if may_have_kept_series(job) else ""
            raise SourceError(f"no worker runs that could list the others{hint}")
        words = worker_command(pod.command, directory)
        done = self._api.run_in_pod(job.namespace, pod, words, POD_SECONDS)
        return _listed(done, f"pod {pod.name}")

    def logs(self, identifier: str, rank: int | None) -> LogTail:
        """An equal share of the newest lines of each worker's pod."""
        namespace, name = self._place(identifier)
        job, notes = read_job(self._api.job(namespace, name)), list[str]()
        choice = Choice(rank)
        pods = _with_rank(job, rank, choice.pods(job, self._pods(namespace, name)))
        if left_out := max(0, len(pods) - MOST_PODS):
            notes.append(f"{left_out} of {len(pods)} pods are left out: give a rank")
        share = max(1, MOST_LINES // max(1, min(len(pods), MOST_PODS)))
        query = LogQuery(tail_lines=share, limit_bytes=MOST_LOG_BYTES)
        lines: list[str] = []
        for pod in pods[:MOST_PODS]:
            found = read_logs(self._api, namespace, [pod], choice, query, notes.append)
            shown = (cut(without_escapes(line), LONGEST_LINE) for line in found)
            lines += itertools.islice(shown, 2 * share)  # of the container before a restart, too
        return LogTail(lines, "; ".join(notes))

    def _place(self, identifier: str) -> tuple[str, str]:
        found = _IDENTIFIER.fullmatch(identifier)
        if found is None or self._namespace not in (None, found[1]):
            raise NoSuchJobError(f"there is no job {identifier!r} in what is shown")
        return found[1], found[2]

    def _pods(self, namespace: str, name: str) -> list[PodRecord]:
        return read_pods(self._api.pods(namespace, name))

    def _events(self, job: JobRecord) -> Sequence[EventRecord]:
        try:
            return events_of_job(self._api, job)
        except ClusterError as error:  # who may read jobs may not always read events
            return [EventRecord(None, "Warning", "EventsNotRead", "", "", str(error))]


def _rest(job: JobRecord) -> object:
    """What differs when the job has trained on, or another one has its name; None while it does not
    rest.
    """
    if not may_have_kept_series(job):
        return None
    return job.created, job.status.progress.step, job.status.rendezvous_generation


def _listed(done: CommandOutput, where: str) -> Sequence[SavedCheckpoint]:
    """What the trainer's command has listed. Raises SourceError."""
    if done.exit_code:
        reason = error_of(done.stderr, done.exit_code)
        raise SourceError(f"{where} cannot list them: {reason}")
    try:
        return read_list(done.stdout)
    except ValueError:
        raise SourceError("what a worker lists cannot be read: use its release") from None


def _points(text: str) -> Sequence[SeriesPoint]:
    try:
        return Series.model_validate_json(text).points
    except ValueError:
        raise SourceError("the coordinator's series cannot be read: use its release") from None


def worker_rows(job: JobRecord, steps: Mapping[int, int]) -> list[WorkerRow]:
    """The workers that the status lists, with the steps that are known."""
    status = job.status
    ranks = job.ranks_per_worker
    slow = {one.rank: f"{one.percent:.0f}% slower than the others" for one in status.stragglers}

    def note(first: int | None) -> str:
        if first is None:
            return ""
        own = (rank for rank in sorted(slow) if first <= rank < first + ranks)
        return ", ".join(f"rank {rank}: {slow[rank]}" for rank in own)

    return [
        WorkerRow(
            worker=one.index,
            pod=one.pod,
            node=one.node,
            state=one.state,
            ranks=ranks_text(one.rank, ranks),
            step=steps.get(one.index),
            note=note(one.rank),
        )
        for one in status.workers
    ]


def _with_rank(job: JobRecord, rank: int | None, pods: list[PodRecord]) -> list[PodRecord]:
    """The pod that has the rank, where the status says so: it lists 64 workers."""
    ranks = job.ranks_per_worker
    named = {
        one.pod
        for one in job.status.workers
        if None not in (rank, one.rank) and 0 <= (rank or 0) - (one.rank or 0) < ranks
    }
    return [pod for pod in pods if pod.name in named] or pods
