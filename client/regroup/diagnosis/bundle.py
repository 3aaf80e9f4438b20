"""`bundle`: what a ticket about a job needs, as files of text without secrets."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property, partial

from regroup.diagnosis.rank_stacks import fold, stack_lines
from regroup.diagnosis.stack_request import ask_workers
from regroup.kubernetes.cluster_api import ClusterApi, LogQuery
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.event_record import belongs, read_event
from regroup.kubernetes.job_description import description_lines
from regroup.kubernetes.job_record import JobRecord, read_job
from regroup.kubernetes.output import structured, without_managed_fields
from regroup.kubernetes.pod_logs import queries
from regroup.kubernetes.pod_record import PodRecord, read_pods
from regroup.kubernetes.redaction import redacted, redacted_text
from regroup.kubernetes.scene import events_of_job, gather
from regroup.kubernetes.timeline import timeline, timeline_lines
from regroup.kubernetes.why_report import explain, why_lines
from regroup_operator.api.names import WORKER
from regroup_operator.api.resource import Object

_WIDTH = 100


@dataclass
class Bundle:
    """Collects files. What cannot be read is noted in `missing`, and the rest is collected."""

    api: ClusterApi
    namespace: str
    name: str
    files: dict[str, str] = field(default_factory=dict)
    """Path in the archive -> text."""
    missing: list[str] = field(default_factory=list)

    def collect(self, operator: str, lines: int) -> dict[str, str]:
        """All files; `lines` of each log. Raises ClusterError when the job cannot be read."""
        document = self.api.job(self.namespace, self.name)
        job, now = read_job(document), self.api.now()
        self._add("job.yaml", lambda: _yaml([document]))
        self._add("describe.txt", lambda: self._describe(job, now))
        self._add("why.txt", lambda: self._why(operator, now))
        self._add("timeline.txt", lambda: _text(timeline_lines(job, timeline(job, now), _WIDTH)))
        self._add("events.yaml", lambda: self._events(job))
        self._add("versions.txt", lambda: _versions(job, self.api.server_version(), now))
        self._add_pods(job, lines)
        if self.missing:
            self.files["missing.txt"] = _text(self.missing)
        return self.files

    @cached_property
    def _pods(self) -> list[Object]:
        """Of the job. Raises ClusterError."""
        return self.api.pods(self.namespace, self.name)

    def _add(self, path: str, read: Callable[[], str]) -> None:
        try:
            self.files[path] = redacted_text(read())
        except ClusterError as error:
            self.missing.append(f"{path}: {error}")

    def _add_pods(self, job: JobRecord, lines: int) -> None:
        try:
            pods = read_pods(self._pods)
        except ClusterError as error:
            self.missing.append(f"pods.yaml and logs: {error}")
            return
        self._add("pods.yaml", lambda: _yaml(self._pods))
        if not job.uses_torchrun and any(pod.role == WORKER for pod in pods):
            self._add("stacks.txt", lambda: self._stacks(pods))
        for pod in pods:
            for query in queries(pod, LogQuery(tail_lines=lines)):
                which = ".previous" if query.previous else ""
                self._add(f"logs/{pod.name}{which}.log", partial(self._log, pod, query))

    def _log(self, pod: PodRecord, query: LogQuery) -> str:
        return _text(self.api.log(self.namespace, pod.name, pod.container, query))

    def _stacks(self, pods: list[PodRecord]) -> str:
        answers = ask_workers(self.api, self.namespace, pods)
        return _text(stack_lines(fold(self.name, answers, all_threads=True), _WIDTH))

    def _events(self, job: JobRecord) -> str:
        """Those of the job and of its pods."""
        uids = {pod.name: pod.uid for pod in read_pods(self._pods)}
        found = self.api.events(self.namespace)
        return _yaml([each for each in found if belongs(read_event(each), job, uids)])

    def _describe(self, job: JobRecord, now: datetime) -> str:
        events = events_of_job(self.api, job)
        return _text(description_lines(job, events, now, _WIDTH))

    def _why(self, operator: str, now: datetime) -> str:
        scene = gather(self.api, self.namespace, self.name, operator)
        return _text(why_lines(explain(scene, now), _WIDTH))


def _yaml(documents: list[dict[str, object]]) -> str:
    return structured([redacted(without_managed_fields(d)) for d in documents], "yaml") + "\n"


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _versions(job: JobRecord, server: str, now: datetime) -> str:
    images = [f"image of {name}: {image}" for name, image in job.status.images.items()]
    return _text(
        [
            f"collected: {now.isoformat(timespec='seconds')}",
            f"regroup (this command): {importlib.metadata.version('regroup')}",
            f"Kubernetes: {server}",
            f"protocol of the job: {job.status.protocol_version}",
            *images,
            f"Python (this command): {platform.python_version()}",
        ]
    )
