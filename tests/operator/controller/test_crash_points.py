"""An operator that dies at any of its writes, before or after it is carried out, also at those to a
coordinator: the next one makes the job whole, and everything is counted and reported once.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from regroup_operator.controller import handlers
from regroup_operator.controller.handlers import Operator
from regroup_operator.leadership.election import Election
from regroup_trainer.protocol.job_status import MemberStatus
from regroup_trainer.system.machine_address import free_port
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.fake_cluster_api import FakeClusterApi
from tests.support.operator_simulation import (
    make_coordinator_status,
    make_spec,
    make_torchrun_spec,
)
from tests.support.rendering import KEYS, SETTINGS
from tests.support.waiting import until

Json = dict[str, Any]
Step = Callable[[FakeClusterApi], Awaitable[None]]
INDEX, ROLE = "regroup.dev/index", "regroup.dev/role"
KINDS = ("services", "networkpolicies", "poddisruptionbudgets", "secrets")
QUIET_LOOKS = 5
"""In a row, until a job counts as at rest."""
REST_SECONDS = 120.0
"""The longest wait for that."""
SOON_SECONDS = 0.3
"""What is to be done so soon is waited for. Looking again at what waits comes later."""
MADE = "WorkersCreated"
"""An event of each round that makes workers, also of one that makes what the former did not."""
MOST_UNREACHED = 2
"""Writes of a course that another one does without: a round may see two changes, and write once."""


# --- what happens to a job ------------------------------------------------------------------------


@dataclass(frozen=True)
class Course:
    """A job, and what happens to it: the start first. The job comes to rest after each step."""

    spec: Json
    workers: int
    steps: tuple[Step, ...]


def live_pods(api: FakeClusterApi) -> list[Json]:
    """Pods that may run."""
    return [
        pod
        for pod in api.all("pods")
        if pod["status"]["phase"] != "Failed" and "deletionTimestamp" not in pod["metadata"]
    ]


def role_of(pod: Json) -> str:
    return str(pod["metadata"]["labels"][ROLE])


def count_of(api: FakeClusterApi, role: str) -> int:
    """How many live pods have this role."""
    return [role_of(pod) for pod in live_pods(api)].count(role)


def worker(api: FakeClusterApi, index: int) -> Json:
    """Its live pod."""
    (pod,) = (p for p in live_pods(api) if p["metadata"]["labels"].get(INDEX) == str(index))
    return pod


def leader(api: FakeClusterApi) -> Json:
    """The live coordinator, or store."""
    (pod,) = (pod for pod in live_pods(api) if role_of(pod) != "worker")
    return pod


async def run_pods(api: FakeClusterApi, role: str) -> None:
    """What kubelets do with new pods of this role."""
    for pod in live_pods(api):
        if role_of(pod) == role and pod["status"]["phase"] == "Pending":
            await api.store("pods", {**pod, "status": {"phase": "Running"}})


async def change_spec(api: FakeClusterApi, **fields: Any) -> None:
    """As a user does."""
    (job,) = api.all("trainingjobs")
    metadata = {**job["metadata"], "generation": job["metadata"]["generation"] + 1}
    spec = {**job["spec"], **fields}
    await api.store("trainingjobs", {**job, "metadata": metadata, "spec": spec})


def start(workers: int) -> Step:
    async def step(api: FakeClusterApi) -> None:
        await until("all pods", lambda: len(live_pods(api)) == workers + 1)
        await run_pods(api, "worker")

    return step


async def lose_worker(api: FakeClusterApi) -> None:
    """Its program ends with an error."""
    lost = worker(api, 3)
    before = count_of(api, "worker")
    await api.fail(lost)
    await until("a replacement", lambda: count_of(api, "worker") == before)


async def suspend(api: FakeClusterApi) -> None:
    await change_spec(api, suspend=True)
    await until("no pods", lambda: not api.all("pods"))


async def resume(api: FakeClusterApi) -> None:
    await change_spec(api, suspend=False)
    await until("all pods", lambda: len(live_pods(api)) == 4)


async def scale_down(api: FakeClusterApi) -> None:
    await change_spec(api, replicas=2)
    await until("fewer workers", lambda: count_of(api, "worker") == 2)


async def evict_leader(api: FakeClusterApi) -> None:
    lost = leader(api)
    await api.store("pods", {**lost, "status": {"phase": "Failed", "reason": "Evicted"}})
    await until("a successor", lambda: count_of(api, role_of(lost)) == 1)


async def drain(api: FakeClusterApi) -> None:
    """A worker is deleted on a node whose kubelet does not answer."""
    await api.store("nodes", {"metadata": {"name": "n1"}, "spec": {}, "status": READY})
    lost = worker(api, 1)
    metadata = {**lost["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    spec = {**lost["spec"], "nodeName": "n1"}
    await api.store("pods", {**lost, "metadata": metadata, "spec": spec})
    await until("a replacement", lambda: count_of(api, "worker") == 3)


READY = {"conditions": [{"type": "Ready", "status": "True"}]}


async def delete_node(api: FakeClusterApi) -> None:
    """What waits for its kubelet is removed by force."""
    await api.remove("nodes", "", "n1")
    await until("no pod of it", lambda: len(api.all("pods")) == 4)


def start_torchrun(workers: int) -> Step:
    """Workers come once their store runs."""

    async def step(api: FakeClusterApi) -> None:
        await until("a store", lambda: count_of(api, "store") == 1)
        await run_pods(api, "store")
        await until("workers", lambda: count_of(api, "worker") == workers)
        await run_pods(api, "worker")

    return step


async def remove_hidden_worker(api: FakeClusterApi) -> None:
    """Its pod leaves no trace, and the status did not show it: it shows 64."""
    lost = worker(api, 65)
    before = count_of(api, "worker")
    await api.remove("pods", lost["metadata"]["namespace"], lost["metadata"]["name"])
    await until("a replacement", lambda: count_of(api, "worker") == before)
    await run_pods(api, "worker")


async def begin_next_attempt(api: FakeClusterApi) -> None:
    """All workers are those of the store's attempt."""
    await run_pods(api, "store")
    term = leader(api)["metadata"]["labels"]["regroup.dev/term"]

    def workers() -> list[str]:
        pods = [pod for pod in live_pods(api) if role_of(pod) == "worker"]
        return [pod["metadata"]["labels"]["regroup.dev/term"] for pod in pods]

    await until("its workers", lambda: workers() == [term] * 3)
    await run_pods(api, "worker")


COURSES = {
    "loss": Course(
        make_spec(replicas=8, elasticPolicy={"minReplicas": 2, "maxReplicas": 8}),
        8,
        (start(8), lose_worker),
    ),
    "suspension": Course(make_spec(), 3, (start(3), suspend, resume)),
    "fewer": Course(make_spec(), 2, (start(3), scale_down)),
    "successor": Course(make_spec(), 3, (start(3), evict_leader)),
    "forced": Course(make_spec(), 3, (start(3), drain, delete_node)),
    "torchrun": Course(
        make_torchrun_spec(), 3, (start_torchrun(3), evict_leader, begin_next_attempt)
    ),
    "hidden": Course(
        make_torchrun_spec(replicas=66, elasticPolicy={"minReplicas": 2, "maxReplicas": 66}),
        66,
        (start_torchrun(66), remove_hidden_worker),
    ),
}
QUICK = "loss"
"""Name of a course. All others together take minutes."""


# --- the operators --------------------------------------------------------------------------------


class Replicas:
    """One operator, and another as soon as that one has no answer to a write."""

    def __init__(self, api: FakeClusterApi) -> None:
        self._api = api
        self._operator: Operator | None = None

    async def start(self) -> None:
        """Start the operator."""
        settings = SETTINGS.model_copy(update={"health_port": free_port()})
        operator = Operator(settings, KEYS)
        await operator.start(may_watch_nodes=True)
        self._operator = operator

    async def stop(self) -> None:
        """End it. Requests that have no answer get none."""
        operator, self._operator = self._operator, None
        if operator is not None:
            await operator.stop()

    async def follow(self) -> None:
        """Replace the operator that waits for an answer."""
        await until("a lost answer", lambda: self._api.has_lost_answer, seconds=600)
        await self.stop()
        self._api.lose_answer_at(0, applied=False)
        await self.start()

    async def rest(self) -> None:
        """Wait until nothing is left to do but to look again."""
        quiet, version = 0, -1
        async with asyncio.timeout(REST_SECONDS):
            while quiet < QUIET_LOOKS:
                quiet = quiet + 1 if self._is_at_rest() and version == self._api.version else 0
                version = self._api.version
                await asyncio.sleep(0.02)

    def _is_at_rest(self) -> bool:
        """A leader has its first rounds at once."""
        if self._operator is None or not self._operator._leads:
            return False
        queue = self._operator.queue
        soon = asyncio.get_running_loop().time() + SOON_SECONDS
        waits = any(timer.when() < soon for timer in queue._timers.values())
        return not (len(queue) or queue._working or waits)


@asynccontextmanager
async def job_of(spec: Json) -> AsyncIterator[FakeClusterApi]:
    """An API server with a job and its claim, which operators ask. No Lease expires, however slow
    the machine is: each operator gives its own back.
    """
    async with FakeClusterApi() as api:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handlers, "login", api.login)
            patch.setattr(handlers, "Election", functools.partial(Election, clock=lambda: 0.0))
            await api.store_job(spec)
            yield api


async def run_steps(steps: Sequence[Step], api: FakeClusterApi) -> list[int]:
    """Take them one after the other. Returns how many writes there were after each step."""
    replicas, writes = Replicas(api), []
    await replicas.start()
    following = asyncio.create_task(replicas.follow())
    try:
        for step in steps:
            await step(api)
            await replicas.rest()
            writes.append(api.writes)
    finally:
        following.cancel()
        await asyncio.wait([following])
        await replicas.stop()
    return writes


def account_of(api: FakeClusterApi) -> Json:
    """What there is in the end, and what was counted and reported."""
    (job,) = api.all("trainingjobs")
    status, reasons = job["status"], [event["reason"] for event in api.all("events")]
    return {
        "podFailures": status.get("podFailures", 0),
        "handledPods": len(status.get("handledPods", ())),
        "restarts": status["restarts"],
        "conditions": {one["type"]: one["status"] for one in status["conditions"]},
        "events": Counter(reasons) - Counter({MADE: reasons.count(MADE)}),
        "pods": Counter(pod["metadata"]["labels"].get(INDEX) for pod in live_pods(api)),
        **{kind: [one["metadata"]["name"] for one in api.all(kind)] for kind in KINDS},
    }


def assert_reported(api: FakeClusterApi, where: str) -> None:
    """No pod was made twice, and each event that the status remembers was made."""
    (job,) = api.all("trainingjobs")
    assert len(api.created["pods"]) == len(set(api.created["pods"])), where
    remembered = {event["name"] for event in job["status"]["recentEvents"]}
    assert remembered <= {event["metadata"]["name"] for event in api.all("events")}, where
    term = leader(api)["metadata"]["labels"]["regroup.dev/term"]
    assert term == str(job["status"]["coordinatorTerm"]), where


@pytest.mark.parametrize(
    "applied",
    [pytest.param(False, marks=pytest.mark.long), True],
    ids=["not carried out", "carried out"],
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == QUICK else pytest.mark.long) for name in COURSES],
)
async def test_wherever_the_operator_dies_the_next_one_counts_and_reports_all_once(
    name: str, applied: bool
) -> None:
    """The writes of a start are those of the first course alone."""
    course = COURSES[name]
    async with job_of(course.spec) as api:
        writes, expected = await run_steps(course.steps, api), account_of(api)
        assert_reported(api, "nobody died")
    assert expected["pods"] == Counter([None, *map(str, range(course.workers))])
    first, last = 1 if name == "loss" else writes[0] + 1, writes[-1]
    unreached = []
    for number in range(first, last + 1):
        where = f"the operator died at write {number} of {last}"
        async with job_of(course.spec) as api:
            api.lose_answer_at(number, applied=applied)
            await run_steps(course.steps, api)
            unreached += [] if api.has_lost_answer else [number]
            assert account_of(api) == expected, where
            assert_reported(api, where)
    assert last > first
    assert len(unreached) <= MOST_UNREACHED, unreached


# --- writes to a coordinator ----------------------------------------------------------------------


class DeadlyCoordinator(CoordinatorStub):
    """The operator dies at its write of this number to it, which is taken over first, or not."""

    def __init__(self, api: FakeClusterApi, number: int, *, applied: bool) -> None:
        super().__init__(make_coordinator_status())
        self.writes = 0
        self._api, self._number, self._applied = api, number, applied
        self._over = threading.Event()

    def __exit__(self, *error: Any) -> None:
        self._over.set()
        super().__exit__(*error)

    def receive(self, take: Callable[[bytes], None], body: bytes) -> None:
        self.writes += 1
        is_last = self.writes == self._number
        if self._applied or not is_last:
            take(body)
        if is_last:
            self._api.has_lost_answer = True
            self._over.wait(REST_SECONDS)

    def take_lost(self, body: bytes) -> None:
        super().take_lost(body)
        self._report_members()

    @property
    def reported_lost(self) -> Counter[str]:
        """UID of a member -> how often it was reported."""
        return Counter(uid for one in self.lost for uid in one.members)

    def _report_members(self) -> None:
        left = (one for one in self._members if one.member not in self.reported_lost)
        self.report(members=tuple(left))

    async def train(self, api: FakeClusterApi) -> None:
        """Its pod runs, and all workers are its members."""
        workers = [pod["metadata"] for pod in live_pods(api) if role_of(pod) == "worker"]
        self._members = tuple(
            MemberStatus(
                member=found["uid"], index=index, pod=found["name"], node="n", rank=index, step=1
            )
            for index, found in enumerate(workers)
        )
        self._report_members()
        status = {"phase": "Running", "podIP": self.address}
        await api.store("pods", {**leader(api), "status": status})
        await until("the operator", lambda: self.watches > 0)

    async def change(self, api: FakeClusterApi) -> None:
        """The user asks for something else."""
        await change_spec(api, elasticPolicy={"minReplicas": 1, "maxReplicas": 3})
        await until("the new spec", lambda: any(each.revision == 2 for each in self.desired))

    async def lose(self, api: FakeClusterApi) -> None:
        """A worker ends."""
        lost = worker(api, 2)
        await api.fail(lost)
        uid = lost["metadata"]["uid"]
        await until("the loss", lambda: uid in self.reported_lost)
        await until("a replacement", lambda: count_of(api, "worker") == 3)


@asynccontextmanager
async def job_of_coordinator(
    number: int, *, applied: bool
) -> AsyncIterator[tuple[FakeClusterApi, DeadlyCoordinator]]:
    """A job whose operator dies at its write of this number to the coordinator."""
    async with job_of(make_spec()) as api:
        with DeadlyCoordinator(api, number, applied=applied) as coordinator:
            steps = (start(3), coordinator.train, coordinator.change, coordinator.lose)
            await run_steps(steps, api)
            yield api, coordinator


@pytest.mark.parametrize("applied", [False, True], ids=["not carried out", "carried out"])
async def test_an_operator_that_dies_at_a_write_to_a_coordinator_leaves_it_to_the_next_one(
    applied: bool,
) -> None:
    async with job_of_coordinator(0, applied=False) as (api, coordinator):
        writes, expected = coordinator.writes, account_of(api)
        assert_reported(api, "nobody died")
    assert writes >= 2
    for number in range(1, writes + 1):
        where = f"the operator died at write {number} of {writes}"
        async with job_of_coordinator(number, applied=applied) as (api, coordinator):
            assert api.has_lost_answer, where
            assert account_of(api) == expected, where
            assert_reported(api, where)
            assert set(coordinator.reported_lost.values()) == {1}, where
