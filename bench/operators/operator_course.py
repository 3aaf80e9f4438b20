"""The course of one measurement: jobs are created, train, lose pods, and their operator ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import statistics
import time
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import aiohttp

from bench.operators import audit
from bench.operators.client import Json, RefusedError, gather, until
from bench.operators.cluster import SimulatedCluster, Usage, usage
from bench.operators.floor import Floor
from bench.operators.pods import PODS, PodWatch
from bench.operators.subjects import REPLICAS, OperatorSubject, RegroupOperator, TrainerV2
from devcluster.errors import DevclusterError

SUBJECTS: Mapping[str, type[OperatorSubject]] = {
    "regroup": RegroupOperator,
    "trainer-v2": TrainerV2,
    "floor": Floor,
}
STOCK = "-stock"
"""Ends the name of a subject whose clients have the limits of requests that they come with."""
UNITS = {
    "create_to_pods_p50_seconds": "s",
    "create_to_pods_p99_seconds": "s",
    "total_seconds": "s",
    "total_running_seconds": "s",
    "create_to_running_p50_seconds": "s",
    "create_to_running_p99_seconds": "s",
    "api_writes_per_job": "count",
    **{f"api_{verb}_writes_per_job": "count" for verb in ("create", "update", "patch", "delete")},
    "api_controllers_writes_per_job": "count",
    "cpu_ms_per_job": "ms",
    "cpu_controllers_ms_per_job": "ms",
    "rss_idle_mb": "MB",
    "rss_idle_standby_mb": "MB",
    "rss_peak_mb": "MB",
    "rss_peak_standby_mb": "MB",
    "idle_cpu_percent": "%",
    "idle_cpu_standby_percent": "%",
    "idle_cpu_controllers_percent": "%",
    "replacement_seconds": "s",
    "replacement_p99_seconds": "s",
    "reported_seconds": "s",
    "unreported_losses": "count",
    "failover_term_seconds": "s",
    "failover_kill_seconds": "s",
    "sync_seconds": "s",
    "sync_replacement_seconds": "s",
    "sync_status_writes_per_job": "count",
    "sync_status_losses": "count",
    "needless_successors": "count",
}
"""Those of `rss_` and `idle_cpu_` are of all processes that act, together. Writes and CPU of a job
are those of the controllers of Kubernetes, too; `controllers` says how much they are.
"""
ENDS = (
    TimeoutError,
    OSError,
    aiohttp.ClientError,
    ExceptionGroup,
    RefusedError,
    DevclusterError,
    LookupError,
)
"""What ends a course early."""
CREATION_SECONDS = 3600.0
PATIENCE_SECONDS = 600.0
REPLACEMENT_SECONDS = 60.0
FAILOVER_SECONDS = 60.0
REPORT_SECONDS = 10.0
"""After the last loss, at most. Its coordinator gets the report while the other pod is made."""
AFTER_SYNC_SECONDS = 10.0
"""In which a status would be written that a restart has changed."""


@dataclass(frozen=True)
class OperatorSize:
    """How much is measured."""

    jobs: int
    idle_seconds: float
    replacements: int
    restarts: bool = True
    """Whether replicas end and start again, where there are any."""
    one_by_one: bool = False
    """Whether each job is created once the one before runs: there is one at a time, many times."""


@dataclass
class OperatorOutcome:
    """Of a subject, as far as its course came."""

    found: dict[str, float | None] = field(default_factory=dict)
    writes: Mapping[audit.Write, int] = field(default_factory=dict)
    """Of the creation of all jobs."""
    is_whole: bool = False


@dataclass(frozen=True)
class Loss:
    """Of a worker's pod."""

    pod: Json
    job: str
    moment: float
    made: Mapping[str, float]
    """The pods of its job, with when each was made. The replacement is added."""
    known: frozenset[str]
    """Those that were made before."""

    @property
    def uid(self) -> str:
        """Of the pod."""
        uid: str = self.pod["metadata"]["uid"]
        return uid

    def is_replaced(self) -> bool:
        """Whether there is another."""
        return bool(self.made.keys() - self.known)

    def took(self) -> float:
        """From the request that has deleted it to the replacement."""
        return min(self.made[name] for name in self.made.keys() - self.known) - self.moment


class OperatorCourse:
    """One subject with a number of jobs."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        subject: OperatorSubject,
        seen: PodWatch,
        outcome: OperatorOutcome,
    ) -> None:
        self._cluster, self._subject, self._seen = cluster, subject, seen
        self._client, self._random = subject.client, random.Random(1)
        self._outcome, self._found = outcome, outcome.found

    async def run(self, size: OperatorSize) -> None:
        """Measure all. Raises what `ENDS` has."""
        self._note_memory("idle", lambda one: one.rss_mb)
        await self._create(size)
        if self._subject.processes():
            await self._idle(size.idle_seconds)
            await self._lose_pods(size.replacements)
            self._note_memory("peak", lambda one: one.peak_mb)
        if isinstance(self._subject, RegroupOperator) and self._subject.can_restart:
            self._note_successors()
            if size.restarts:
                await self._fail_over(self._subject)
                await self._restart(self._subject, size.jobs)
                self._note_successors()
                self._note_memory("peak", lambda one: one.peak_mb)  # a new leader lists all at once

    async def _create(self, size: OperatorSize) -> None:
        names = [f"job-{number:05d}" for number in range(size.jobs)]
        own, controllers = self._own_cpu(), self._controllers_cpu()
        created, before = dict[str, float](), self._cluster.audit_size()

        async def create(name: str) -> None:
            created[name] = await self._subject.create(name)

        begun = time.monotonic()
        for some in ([name] for name in names) if size.one_by_one else (names,):
            await gather(map(create, some))
            await self._until_all(self._seen.made, some, CREATION_SECONDS)
            await self._until_all(self._seen.ran, some, PATIENCE_SECONDS)
        await until(self._subject.all_train, PATIENCE_SECONDS, every=1.0)
        for what, moments, total in (
            ("pods", self._seen.made, "total_seconds"),
            ("running", self._seen.ran, "total_running_seconds"),
        ):
            ends = {name: max(moments[name].values()) for name in names}
            took = [ends[name] - created[name] for name in names]
            self._found[f"create_to_{what}_p50_seconds"] = median = statistics.median(took)
            self._found[f"create_to_{what}_p99_seconds"] = quantile(took, 0.99)
            self._found[total] = median if size.one_by_one else max(ends.values()) - begun
        own, controllers = self._own_cpu() - own, self._controllers_cpu() - controllers
        self._found["cpu_ms_per_job"] = 1000 * (own + controllers) / size.jobs
        self._found["cpu_controllers_ms_per_job"] = 1000 * controllers / size.jobs
        self._outcome.writes = self._cluster.writes_since(before)
        self._found |= _writes_per_job(self._outcome.writes, size.jobs)

    async def _until_all(
        self, moments: Mapping[str, Mapping[str, float]], names: Sequence[str], seconds: float
    ) -> None:
        expected = self._subject.pods_per_job
        waiting = list(names)

        def done() -> bool:
            # Looks at one job for each event: with a thousand jobs there are many events.
            while waiting and len(moments.get(waiting[-1], ())) >= expected:
                waiting.pop()
            return not waiting

        await self._seen.until(done, seconds)

    async def _idle(self, seconds: float) -> None:
        before, controllers, begun = self._usages(), self._controllers_cpu(), time.monotonic()
        await asyncio.sleep(seconds)
        took, after = time.monotonic() - begun, self._usages()
        shares = {
            name: 100 * (after[name].cpu_seconds - before[name].cpu_seconds) / took
            for name in after
        }
        self._found["idle_cpu_standby_percent"] = shares.pop(self._subject.standby() or "", None)
        self._found["idle_cpu_percent"] = sum(shares.values())
        controllers = self._controllers_cpu() - controllers
        self._found["idle_cpu_controllers_percent"] = 100 * controllers / took

    async def _lose_pods(self, count: int) -> None:
        losses = [await self._replaced(REPLACEMENT_SECONDS) for _ in range(count)]
        took = [loss.took() for loss in losses]
        if isinstance(self._subject, RegroupOperator):
            reported = await _reports_of(self._subject, {loss.uid for loss in losses})
            after = [reported[loss.uid] - loss.moment for loss in losses if loss.uid in reported]
            self._found["reported_seconds"] = statistics.median(after) if after else None
            self._found["unreported_losses"] = count - len(after)
        self._found["replacement_seconds"] = statistics.median(took)
        self._found["replacement_p99_seconds"] = quantile(took, 0.99)

    async def _replaced(self, seconds: float) -> Loss:
        """Lose a pod, and wait for another."""
        loss = await self._lose_pod()
        await self._seen.until(loss.is_replaced, seconds)
        return loss

    async def _lose_pod(self) -> Loss:
        """Of any worker."""
        name = self._random.choice(sorted(filter(self._is_worker, self._seen.pods)))
        pod = self._seen.pods[name]
        job = pod["metadata"]["labels"][self._subject.label]
        made = self._seen.made[job]
        loss = Loss(pod, job, time.monotonic(), made, frozenset(made))
        await self._client.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        return loss

    def _is_worker(self, name: str) -> bool:
        """Whether the pod is one, and runs."""
        pod = self._seen.pods[name]
        is_coordinator = pod["metadata"]["labels"].get("regroup.dev/role") == "coordinator"
        return pod["status"].get("phase") == "Running" and not is_coordinator

    async def _fail_over(self, subject: RegroupOperator) -> None:
        for how, name in ((signal.SIGTERM, "term"), (signal.SIGKILL, "kill")):
            leader = subject.leader()
            assert leader is not None
            begun = time.monotonic()
            await asyncio.to_thread(subject.end, (leader,), how)
            loss = await self._replaced(FAILOVER_SECONDS)
            # A worker that is lost at once may still be replaced by a leader that ends.
            since = begun if how == signal.SIGTERM else loss.moment
            self._found[f"failover_{name}_seconds"] = loss.moment + loss.took() - since
            subject.start((leader,))
            await asyncio.to_thread(subject.wait_until_led)

    async def _restart(self, subject: RegroupOperator, jobs: int) -> None:
        said: list[Json] = []
        watch = asyncio.create_task(self._note_said(said))
        await asyncio.to_thread(subject.end, REPLICAS)
        before, loss = self._cluster.audit_size(), await self._lose_pod()
        begun = time.monotonic()
        subject.start()

        await self._seen.until(loss.is_replaced, FAILOVER_SECONDS)
        self._found["sync_replacement_seconds"] = loss.moment + loss.took() - begun
        leader = subject.leader()
        assert leader is not None

        async def has_synced() -> bool:
            return await asyncio.to_thread(subject.has_synced, leader, jobs)

        await until(has_synced, PATIENCE_SECONDS)
        self._found["sync_seconds"] = time.monotonic() - begun
        written = self._cluster.status_writes_since(before, "trainingjobs")
        self._found["sync_status_writes_per_job"] = most_writes(written, jobs, loss.job)
        await asyncio.sleep(AFTER_SYNC_SECONDS)
        await end_watch(watch)
        self._found["sync_status_losses"] = len(losers(said, loss.job))

    async def _note_said(self, said: list[Json]) -> None:
        """Note each job as it is at first, and after each change."""
        async for event in self._client.watch(self._subject.jobs_path):
            said.append(said_by(event["object"]))  # noqa: PERF401 - the watch does not end

    def _usages(self) -> dict[str, Usage]:
        return {name: usage(pid) for name, pid in self._subject.processes().items()}

    def _own_cpu(self) -> float:
        """Seconds of all processes of the subject."""
        return sum(one.cpu_seconds for one in self._usages().values())

    def _controllers_cpu(self) -> float:
        """Seconds of Kubernetes' controllers."""
        return usage(self._cluster.controllers_pid()).cpu_seconds

    def _note_memory(self, when: str, figure: Callable[[Usage], float]) -> None:
        usages = self._usages()
        standby = usages.pop(self._subject.standby() or "", None)
        found, before = sum(map(figure, usages.values())), self._found.get(f"rss_{when}_mb")
        self._found[f"rss_{when}_mb"] = max(found, before or 0.0) or None
        self._found[f"rss_{when}_standby_mb"] = figure(standby) if standby else None

    def _note_successors(self) -> None:
        self._found["needless_successors"] = sum(map(_is_successor, self._seen.pods))


def quantile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def most_writes(written: Mapping[str, int], jobs: int, apart: str) -> float | None:
    """Of one job, without the one that lost a worker; None where that is the only one."""
    others = [count for job, count in written.items() if job != apart]
    return max(others, default=0) if jobs > 1 else None


async def _reports_of(subject: RegroupOperator, pods: Set[str]) -> Mapping[str, float]:
    """When coordinators got the reports that these pods are lost, by UID; not of those too late."""
    reported = dict[str, float]()

    async def are_all_reported() -> bool:
        reported.update(await asyncio.to_thread(subject.reported))
        return pods <= reported.keys()

    with contextlib.suppress(TimeoutError):
        await until(are_all_reported, REPORT_SECONDS)
    return reported


async def end_watch(watch: asyncio.Task[object]) -> None:
    """End what is to watch until now. Raises what has ended it before, ConnectionError too: what
    came later was not seen.
    """
    if watch.done():
        watch.result()
        raise ConnectionError("the watch of the jobs has ended")
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


def losers(said: Sequence[Json], apart: str) -> set[str]:
    """Names of the jobs whose status loses what it has said. `apart`: one that has lost a worker,
    and is to say so.
    """
    found, former = set[str](), dict[str, Json]()
    for job in said:
        name = job["name"]
        if name in former and un_says(former[name], job, is_whole=name != apart):
            found.add(name)
        former[name] = job
    return found


LASTING = ("phase", "rendezvousGeneration", "startTime")
RISING = ("step", "saved", "restartCount", "coordinatorTerm", "nextIncarnation")
OF_WORKERS = ("ready", "replicas", "readyReplicas", "worldSize")
"""What does not fall as long as a job loses no worker."""


def un_says(former: Json, job: Json, *, is_whole: bool = True) -> bool:
    """Whether a job, as `said_by` has it, loses what the former one has said. `is_whole`: it has
    lost no worker.
    """
    rising, kept = (*RISING, *OF_WORKERS * is_whole), ("recoveries", *["workers"] * is_whole)
    return (
        any(job.get(key) != former.get(key) for key in LASTING)
        or any((job.get(key) or 0) < (former.get(key) or 0) for key in rising)
        or any(not set(former[key]) <= set(job[key]) for key in kept)
    )


def said_by(job: Json) -> Json:
    """What of a job's status must not be un-said, by name."""
    status = job.get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
    return {
        **{key: status.get(key) for key in (*LASTING, *RISING, *OF_WORKERS)},
        "name": job["metadata"]["name"],
        "step": status.get("progress", {}).get("step"),
        "saved": status.get("checkpoint", {}).get("lastStep"),
        "ready": conditions.get("Ready") == "True",
        "workers": [one["pod"] for one in status.get("workers", ())],
        "recoveries": [one["time"] for one in status.get("recoveries", ())],
    }


async def measure(size: OperatorSize, name: str, report: Callable[[str], None]) -> OperatorOutcome:
    """The figures of a subject on a cluster of its own. What ends the course early is reported."""
    kind, outcome = SUBJECTS[name.removesuffix(STOCK)], OperatorOutcome()
    try:
        with SimulatedCluster(report, stock_limits=name.endswith(STOCK)) as cluster:
            async with cluster.client() as client, cluster.client("script") as script:
                subject = kind(cluster, client, script)
                await cluster.add_nodes(client, size.jobs * subject.pods_per_job)
                await subject.install()
                async with PodWatch(client, subject.label) as seen:
                    await OperatorCourse(cluster, subject, seen, outcome).run(size)
        outcome.is_whole = True
    except ENDS as error:
        report("".join(traceback.format_exception(error)))
    return outcome


def _writes_per_job(writes: Mapping[audit.Write, int], jobs: int) -> dict[str, float]:
    found = {f"api_{verb}": count for verb, count in audit.by_verb(writes).items()}
    found |= {"api": sum(writes.values()), "api_controllers": audit.by_controllers(writes)}
    return {f"{name}_writes_per_job": count / jobs for name, count in found.items()}


def _is_successor(pod: str) -> bool:
    """Whether it is a coordinator after the first."""
    _, found, term = pod.rpartition("-c")
    return bool(found) and term.isdigit() and int(term) > 1
