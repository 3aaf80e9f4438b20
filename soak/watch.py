"""Looks at the jobs once a second while faults strike: progress, pods, recoveries, memory."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from devcluster.errors import DevclusterError
from soak import commits, held, pod_states, records
from soak.commits import RankMemory
from soak.evidence import Kept, Sample
from soak.memory_growth import Memory
from soak.pod_states import PodLook
from soak.process import mebibytes
from soak.site import UNREACHABLE, Job, Site, watched

EVERY_SECONDS = 1.0
WORKER = re.compile(r"(.*)-w(\d+)-\d+")
Json = dict[str, Any]


class Watch:
    """A context in which a thread watches jobs. What it saw is read after its end, which raises
    RuntimeError if the thread met an error: what it saw is not whole then.
    """

    def __init__(self, site: Site, jobs: tuple[Job, ...]) -> None:
        self._site, self._jobs = site, jobs
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak-watch", daemon=True)
        self.samples: dict[str, list[Sample]] = defaultdict(list)
        self.commits: dict[str, list[Sample]] = defaultdict(list)
        self.kept: dict[str, list[Kept]] = defaultdict(list)
        self.looks: dict[str, list[PodLook]] = defaultdict(list)
        self.recoveries: dict[str, dict[tuple[str, str], Json]] = defaultdict(dict)
        """By job; each by its time and generation, as it was seen last."""
        self.duplicates: dict[str, list[str]] = defaultdict(list)
        self._members: dict[str, list[Json]] = {}
        self._ranks: dict[str, list[RankMemory]] = {}
        """By the UID of their pod: to look for them takes long."""
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()
        if error is None:
            self.raise_error()

    def raise_error(self) -> None:
        """Raise RuntimeError if the thread has met an error, and so sees nothing any more."""
        if self._error is not None:
            raise RuntimeError(f"the soak stopped watching: {self._error!r}") from self._error

    def _run(self) -> None:
        try:
            while not self._end.wait(EVERY_SECONDS):
                for job in self._jobs:
                    self._look(job)
        except Exception as error:  # raised in the main thread, which is not to go on blindly
            self._error = error

    def _look(self, job: Job) -> None:
        with contextlib.suppress(OSError):  # a file may be renamed meanwhile
            folder = job.folder()
            step = records.newest_step(folder) if folder else None
            self.samples[job.name].append(Sample(time.time(), step))
        with contextlib.suppress(*UNREACHABLE):
            began, status = time.time(), job.status()
            self.note(job, status)
            pods, meeting = job.pods("worker"), job.pods(job.meeting_role)
            self.looks[job.name].append(PodLook(began, self._states(meeting), self._states(pods)))
            self.duplicates[job.name] += twice(pods)
            self._members[job.name] = members(status, pods)
            self.kept[job.name].append(self._kept(job, began, self._members[job.name]))
        self.look_at_commits(job)

    def look_at_commits(self, job: Job) -> None:
        """Keep the newest commit of a job's ranks. Nobody is asked for their pods: those that a
        look has found last are read.
        """
        pods = [] if job.is_torchrun else self._members.get(job.name, ())
        ranks = [rank for pod in pods for rank in self._ranks_of(pod)]
        commit = commits.newest(ranks, time.time())
        if commit and commit not in self.commits[job.name][-1:]:
            self.commits[job.name].append(commit)

    def _ranks_of(self, pod: Json) -> list[RankMemory]:
        uid = pod["metadata"]["uid"]
        known = self._ranks.get(uid, [])
        if not known or any(rank.process.is_gone for rank in known):
            known = self._ranks[uid] = list(self._find_ranks(pod))
        return known

    def _find_ranks(self, pod: Json) -> Iterator[RankMemory]:
        with contextlib.suppress(DevclusterError, OSError):  # the node is gone
            for pid, name in self._site.processes(pod).items():
                with contextlib.suppress(LookupError, OSError):  # it has ended
                    if name.startswith("rank-"):
                        yield RankMemory.of(pid)

    def _states(self, pods: Sequence[Json]) -> tuple[str, ...]:
        now, alive = time.time(), [pod for pod in pods if is_alive(pod)]
        return tuple(pod_states.state(pod, now, self._site.runs) for pod in alive)

    def _kept(self, job: Job, began: float, pods: Sequence[Json]) -> Kept:
        nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
        names = {
            pod["metadata"]["name"]: [
                path.name for path in self._site.scratch(pod).glob(held.PATTERN)
            ]
            for pod in pods
        }
        folder = job.folder()
        checkpoints = records.checkpoints(folder) if folder else ()
        return Kept(began, time.time(), held.whole(names, nodes), checkpoints)

    def note(self, job: Job, status: Json) -> None:
        """Keep the recoveries that a status shows; it shows only the last ten."""
        for one in status.get("recoveries", ()):
            self.recoveries[job.name][one["time"], one.get("generation", "")] = one


def members(status: Json, pods: Sequence[Json]) -> list[Json]:
    """The pods of the workers that train."""
    ranks = {one["pod"]: one.get("rank") for one in status.get("workers", ())}
    return [pod for pod in pods if ranks.get(pod["metadata"]["name"]) is not None]


def is_alive(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has not ended."""
    return pod["status"].get("phase") in ("Pending", "Running")


def twice(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each worker with more than one pod among those that are not being deleted and
    have not ended.
    """
    names = [
        match
        for pod in pods
        if is_alive(pod) and (match := WORKER.fullmatch(pod["metadata"]["name"]))
    ]
    counts = Counter((match[1], match[2]) for match in names)
    return [
        f"worker {index} of {job} has {count} pods"
        for (job, index), count in counts.items()
        if count > 1
    ]


def memory(site: Site, jobs: tuple[Job, ...], fault: int) -> list[Memory]:
    """Of operator, coordinators and agents, after the fault of this number."""
    found: list[Memory] = []
    with contextlib.suppress(*UNREACHABLE):
        for role, name, process in watched(site, jobs):
            size = mebibytes(process)
            if size is not None:
                found.append(Memory(role, name, fault, size))
    return found
