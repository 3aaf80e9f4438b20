"""The course of one measurement: jobs are created, train, lose pods, and their operator ends."""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.harness import Values
from bench.operators import audit
from bench.operators.client import Client, gather, until
from bench.operators.cluster import SimulatedCluster, Usage, usage
from bench.operators.floor import Floor
from bench.operators.pods import PODS, PodWatch
from bench.operators.subjects import REPLICAS, Regroup, Subject, TrainerV2

SUBJECTS: Mapping[str, type[Subject]] = {
    "regroup": Regroup,
    "trainer-v2": TrainerV2,
    "floor": Floor,
}
STOCK = "-stock"
"""Ends the name of a subject whose clients have the limits of requests that they come with."""
UNITS = {
    "create_to_pods_p50_seconds": "s",
    "create_to_pods_p99_seconds": "s",
    "total_seconds": "s",
    "create_to_running_p50_seconds": "s",
    "create_to_running_p99_seconds": "s",
    "api_writes_per_job": "count",
    "cpu_ms_per_job": "ms",
    "rss_idle_mb": "MB",
    "rss_peak_mb": "MB",
    "rss_standby_mb": "MB",
    "idle_cpu_percent": "%",
    "idle_standby_cpu_percent": "%",
    "replacement_seconds": "s",
    "replacement_p99_seconds": "s",
    "sync_seconds": "s",
    "sync_status_writes": "count",
    "failover_term_seconds": "s",
    "failover_kill_seconds": "s",
    "needless_successors": "count",
}
CREATION_SECONDS = 1800.0
PATIENCE_SECONDS = 600.0
REPLACEMENT_SECONDS = 60.0
FAILOVER_SECONDS = 60.0


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    jobs: int
    idle_seconds: float
    replacements: int


class Course:
    """One subject with a number of jobs."""

    def __init__(self, cluster: SimulatedCluster, subject: Subject, seen: PodWatch) -> None:
        self._cluster, self._subject, self._seen = cluster, subject, seen
        self._random = random.Random(1)
        self.found: dict[str, float | None] = {}
        self.writes: Mapping[audit.Write, int] = {}
        """Of the creation of all jobs."""

    async def run(self, size: Size, client: Client) -> None:
        """Measure all."""
        self._client = client
        idle = self._usages()
        self.found["rss_idle_mb"] = sum(one.rss_mb for one in idle.values()) or None
        await self._create(size.jobs)
        if self._subject.processes():
            await self._idle(size.idle_seconds)
            await self._lose_pods(size.replacements)
        if isinstance(self._subject, Regroup) and self._subject.can_restart:
            await self._fail_over(self._subject)
            await self._restart(self._subject)
            needless = [name for name in self._seen.pods if _is_successor(name)]
            self.found["needless_successors"] = len(needless)

    async def _create(self, jobs: int) -> None:
        names = [f"job-{number:05d}" for number in range(jobs)]
        cpu, created = self._cpu(), dict[str, float]()
        before = self._cluster.audit_size()

        async def create(name: str) -> None:
            created[name] = time.monotonic()
            await self._subject.create(name)

        begun = time.monotonic()
        await gather(map(create, names))
        await self._until_all(self._seen.made, names, CREATION_SECONDS)
        await self._until_all(self._seen.ran, names, PATIENCE_SECONDS)
        await until(self._subject.all_train, PATIENCE_SECONDS, every=1.0)
        for what, moments in (("pods", self._seen.made), ("running", self._seen.ran)):
            took = [max(moments[name].values()) - created[name] for name in names]
            self.found[f"create_to_{what}_p50_seconds"] = statistics.median(took)
            self.found[f"create_to_{what}_p99_seconds"] = quantile(took, 0.99)
        last = max(max(moments.values()) for moments in map(self._seen.made.__getitem__, names))
        self.found["total_seconds"] = last - begun
        self.found["cpu_ms_per_job"] = 1000 * (self._cpu() - cpu) / jobs
        self.writes = self._cluster.writes_since(before)
        self.found["api_writes_per_job"] = sum(self.writes.values()) / jobs
        usages = list(self._usages().values())
        if usages:
            self.found["rss_peak_mb"] = max(one.peak_mb for one in usages)

    async def _until_all(
        self, moments: Mapping[str, Mapping[str, float]], names: Sequence[str], seconds: float
    ) -> None:
        expected = self._subject.pods_per_job
        waiting = set(names)

        def done() -> bool:
            ready = {name for name in waiting if len(moments.get(name, ())) >= expected}
            waiting.difference_update(ready)
            return not waiting

        await self._seen.until(done, seconds)

    async def _idle(self, seconds: float) -> None:
        before, begun = self._usages(), time.monotonic()
        await asyncio.sleep(seconds)
        took, after = time.monotonic() - begun, self._usages()
        shares = {
            name: 100 * (after[name].cpu_seconds - before[name].cpu_seconds) / took
            for name in after
        }
        standby = self._standby()
        if standby is not None:
            self.found["idle_standby_cpu_percent"] = shares.pop(standby)
            self.found["rss_standby_mb"] = after[standby].rss_mb
        self.found["idle_cpu_percent"] = sum(shares.values())

    async def _lose_pods(self, count: int) -> None:
        took = [await self._replacement(REPLACEMENT_SECONDS) for _ in range(count)]
        self.found["replacement_seconds"] = statistics.median(took)
        self.found["replacement_p99_seconds"] = quantile(took, 0.99)

    async def _replacement(self, seconds: float) -> float:
        """From the request that deletes a worker's pod until there is another."""
        running = sorted(name for name, pod in self._seen.pods.items() if _is_worker(pod))
        name = self._random.choice(running)
        label = self._subject.label
        made = self._seen.made[self._seen.pods[name]["metadata"]["labels"][label]]
        known, begun = set(made), time.monotonic()
        await self._client.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        await self._seen.until(lambda: bool(made.keys() - known), seconds)
        (new, *_) = sorted(made.keys() - known)
        return made[new] - begun

    async def _fail_over(self, subject: Regroup) -> None:
        for how, name in ((signal.SIGTERM, "term"), (signal.SIGKILL, "kill")):
            leader = subject.leader()
            assert leader is not None
            begun = time.monotonic()
            await asyncio.to_thread(subject.end, (leader,), how)
            ended = time.monotonic() - begun if how == signal.SIGTERM else 0.0
            took = await self._replacement(FAILOVER_SECONDS)
            self.found[f"failover_{name}_seconds"] = ended + took
            subject.start((leader,))
            await asyncio.to_thread(subject.wait_until_led)

    async def _restart(self, subject: Regroup) -> None:
        subject.end(REPLICAS)
        before, begun = self._cluster.audit_size(), time.monotonic()
        subject.start()
        await asyncio.to_thread(subject.wait_until_led)
        self.found["sync_seconds"] = time.monotonic() - begun
        await self._replacement(FAILOVER_SECONDS)
        await asyncio.sleep(10)
        done = self._cluster.writes_since(before)
        status = sum(n for write, n in done.items() if write.resource.endswith("jobs/status"))
        self.found["sync_status_writes"] = status

    def _usages(self) -> dict[str, Usage]:
        return {name: usage(pid) for name, pid in self._subject.processes().items()}

    def _cpu(self) -> float:
        """Seconds of all processes of the subject, and of Kubernetes' controllers."""
        own = sum(one.cpu_seconds for one in self._usages().values())
        return own + usage(self._cluster.controllers_pid()).cpu_seconds

    def _standby(self) -> str | None:
        if not isinstance(self._subject, Regroup):
            return None
        leader = self._subject.leader()
        return next((name for name in REPLICAS if name != leader), None)


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def measure(
    size: Size, name: str, report: Callable[[str], None]
) -> tuple[Values, Mapping[audit.Write, int]]:
    """The figures of a subject on a cluster of its own, and the writes that made the jobs."""
    kind = SUBJECTS[name.removesuffix(STOCK)]
    with SimulatedCluster(report, stock_limits=name.endswith(STOCK)) as cluster:
        async with cluster.client() as client, cluster.client("script") as script:
            subject = kind(cluster, client, script)
            await cluster.add_nodes(client, size.jobs * subject.pods_per_job)
            await subject.install()
            async with PodWatch(client, subject.label) as seen:
                course = Course(cluster, subject, seen)
                await course.run(size, client)
    return course.found, course.writes


def _is_successor(pod: str) -> bool:
    """Whether it is a coordinator after the first."""
    _, found, term = pod.rpartition("-c")
    return bool(found) and term.isdigit() and int(term) > 1


def _is_worker(pod: Mapping[str, object]) -> bool:
    metadata, status = pod["metadata"], pod["status"]
    assert isinstance(metadata, dict)
    assert isinstance(status, dict)
    is_coordinator = metadata["labels"].get("regroup.dev/role") == "coordinator"
    return status.get("phase") == "Running" and not is_coordinator
