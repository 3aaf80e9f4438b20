"""`logs`: the lines of all workers of a job as they come, each with its rank or pod in front.

Agents already put `rank N: ` before what a rank writes, under torchrun the program beside the rank.
Other lines get the name of their pod.
"""

from __future__ import annotations

import math
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Protocol

from regroup.kubernetes.cluster_api import LogQuery
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.pod_record import PodRecord
from regroup_operator.api.names import WORKER

_RANK = re.compile(r"rank (\d+): ")
_PLANNED = ("preemption", "resize")
"""Causes of a recovery without a failure."""
LOOK_SECONDS = 2.0
"""Pause between two looks for pods that have replaced others."""
_QUEUED = 10_000
"""Lines that wait to be printed; a pod that is ahead waits too."""


class LogSource(Protocol):
    """What is needed of ClusterApi."""

    def log(self, namespace: str, pod: str, container: str, query: LogQuery) -> Iterator[str]:
        """The lines of a container's log."""


@dataclass(frozen=True)
class LogLine:
    """One line that a pod wrote."""

    pod: str
    rank: int | None
    """None: the agent or torchrun wrote it."""
    text: str
    """Without the rank in front."""

    @property
    def named(self) -> str:
        """With the rank in front, else with the pod."""
        return self.wide if self.rank is None else f"rank {self.rank}: {self.text}"

    @property
    def wide(self) -> str:
        """With the pod in front, and the rank."""
        writer = self.pod if self.rank is None else f"{self.pod} rank {self.rank}"
        return f"{writer}: {self.text}"


@dataclass(frozen=True)
class Choice:
    """Which lines."""

    rank: int | None = None
    failed: bool = False
    """Only of pods in which a container or a rank failed."""
    form: Callable[[LogLine], str] = attrgetter("named")
    """What is printed of a line."""

    def pods(self, job: JobRecord, pods: Sequence[PodRecord]) -> list[PodRecord]:
        """The pods whose logs are read. Which of them a rank was in is known by its lines."""
        failed = _pods_of_failed_ranks(job)
        return [
            pod
            for pod in pods
            if pod.failed or pod.name in failed or (not self.failed and pod.role == WORKER)
        ]

    def shown(self, pod: str, line: str) -> str | None:
        """The line as it is printed; None where it is not."""
        found = _RANK.match(line)
        rank = int(found[1]) if found else None
        if self.rank not in (None, rank):
            return None
        return self.form(LogLine(pod, rank, line[found.end() :] if found else line))


def _pods_of_failed_ranks(job: JobRecord) -> set[str]:
    """A pod runs on when one of its ranks has failed, which the status remembers."""
    return {one.pod for one in job.status.recoveries if one.cause not in _PLANNED}


def queries(pod: PodRecord, wanted: LogQuery) -> list[LogQuery]:
    """The logs to read of a pod: that of a container that failed, before it was started again, and
    that of the one which runs.
    """
    if pod.phase == "Pending" and pod.end is None:
        return []
    before = pod.end is not None and pod.end.before_restart
    former = [replace(wanted, follow=False, previous=True)] if before else []
    return [*former, wanted]


def read_logs(
    source: LogSource,
    namespace: str,
    pods: Sequence[PodRecord],
    choice: Choice,
    query: LogQuery,
    note: Callable[[str], None],
) -> Iterator[str]:
    """Yield the lines of one pod after the other. A log that is gone is passed to `note`."""
    for pod in pods:
        for one in queries(pod, query):
            try:
                lines = source.log(namespace, pod.name, pod.container, one)
                yield from filter(None, (choice.shown(pod.name, line) for line in lines))
            except ClusterError as error:
                note(f"{pod.name}: {error}")


@dataclass
class Follower:
    """Follows the logs of all pods of a job, of those that replace others too."""

    source: LogSource
    look: Callable[[], tuple[JobRecord, list[PodRecord]]]
    """The job and its pods as they are. May raise ClusterError."""
    choice: Choice
    query: LogQuery
    note: Callable[[str], None]
    pause: float = LOOK_SECONDS
    _lines: queue.Queue[str] = field(default_factory=lambda: queue.Queue(_QUEUED))
    _threads: dict[str, threading.Thread] = field(default_factory=dict)
    _ends: dict[str, float] = field(default_factory=dict)
    """Pod -> when the stream of its log ended."""
    _reported: set[str] = field(default_factory=set)

    def lines(self) -> Iterator[str]:
        """Yield the lines as they come, until the job has ended and all are read."""
        ended, next_look = False, 0.0
        while True:
            if not ended and time.monotonic() >= next_look:
                ended, next_look = self._look(), time.monotonic() + self.pause
            try:
                yield self._lines.get(timeout=self.pause / 4)
            except queue.Empty:
                if ended and not any(thread.is_alive() for thread in self._threads.values()):
                    return

    def _look(self) -> bool:
        """Follow pods that are new. Returns whether the job has ended."""
        try:
            job, pods = self.look()
        except ClusterError as error:
            if not error.may_pass:
                raise
            self._report(str(error))
            return False
        for pod in self.choice.pods(job, pods):
            if query := self._query(pod):
                # A daemon: a log that never ends must not keep the command.
                work = threading.Thread(target=self._follow, args=(job, pod, query), daemon=True)
                self._threads[pod.name] = work
                work.start()
        return job.has_ended

    def _query(self, pod: PodRecord) -> LogQuery | None:
        """What to read of a pod: all that was asked for, or what came since its stream broke while
        it runs on; None while it is being read, and when it has ended.
        """
        if pod.phase == "Pending":
            return None
        if pod.name not in self._threads:
            return self.query
        if self._threads[pod.name].is_alive() or pod.phase != "Running" or pod.deleting:
            return None
        idle = time.monotonic() - self._ends.get(pod.name, math.inf)
        if idle < 2 * self.pause:  # a pod that has just ended may still be shown as running
            return None
        return LogQuery(follow=True, since_seconds=math.ceil(idle))

    def _follow(self, job: JobRecord, pod: PodRecord, query: LogQuery) -> None:
        try:
            lines = read_logs(self.source, job.namespace, [pod], self.choice, query, self._report)
            for line in lines:
                self._lines.put(line)
        except Exception as error:  # the end of a thread would show a traceback
            self._report(f"{pod.name}: {type(error).__name__}: {error}")
        finally:
            self._ends[pod.name] = time.monotonic()

    def _report(self, text: str) -> None:
        """Note it, once."""
        if text not in self._reported:
            self._reported.add(text)
            self.note(text)
