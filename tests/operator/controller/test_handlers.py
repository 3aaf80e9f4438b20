"""The whole operator in this process, beside an API server that counts what it is asked for."""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, NoReturn

import aiohttp
import pytest

from regroup_operator.api import names
from regroup_operator.api.resource import Key
from regroup_operator.controller import handlers
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.handlers import (
    REST_SECONDS,
    ROUNDS_AT_ONCE,
    ROUNDS_OF_A_NAMESPACE,
    Operator,
    rest_after,
    shows_progress_alone,
)
from regroup_operator.controller.reconcile import CONFLICT_SECONDS, Reconciler
from regroup_operator.controller.work_queue import Urgency, WorkQueue
from regroup_operator.errors import ClusterError
from regroup_operator.informer.job_pods import JobPods
from regroup_operator.informer.object_cache import Change, Seen
from regroup_operator.informer.remembered_objects import RememberedObjects
from regroup_operator.observe.observed import AnyJob, Pod
from regroup_trainer.system.machine_address import free_port
from tests.support.fake_cluster_api import FakeClusterApi
from tests.support.job_memory import make_memory
from tests.support.operator_simulation import make_spec
from tests.support.rendering import KEYS, SETTINGS
from tests.support.waiting import until

Json = dict[str, Any]
KEY = ("a", "gpt")


def refuse_to_end(why: str) -> NoReturn:
    """Instead of the end of the process."""
    raise RuntimeError(why)


class Running:
    """An operator, and how often it was asked for what in how many rounds."""

    def __init__(self, api: FakeClusterApi, operator: Operator, port: int) -> None:
        self.api, self.operator, self.port = api, operator, port
        self.reconciler: Reconciler | None = None
        self.rounds = 0
        """That have ended."""
        self._is_stopped = False

    async def stop(self) -> None:
        """As upon SIGTERM; once."""
        if not self._is_stopped:
            self._is_stopped = True
            await self.operator.stop()

    def begin(self) -> None:
        """Count from here on."""
        self.api.requests.clear()
        self.rounds = 0

    async def reads(self) -> Counter[str]:
        """The reads since `begin`, once no round is under way or waits, and there was one."""
        queue = self.operator.queue
        await until("rest", lambda: self.rounds > 0 and not (len(queue) or queue._working))
        counts = self.api.requests
        of_rounds = {k: n for k, n in counts.items() if k != "get leases"}
        return Counter({k: n for k, n in of_rounds.items() if k.startswith(("get ", "list "))})

    def writes(self) -> Counter[str]:
        """The writes since `begin`, but for those of the Lease."""
        verbs = ("create ", "patch ", "delete ")
        counts = self.api.requests
        of_jobs = {k: n for k, n in counts.items() if not k.endswith(" leases")}
        return Counter({k: n for k, n in of_jobs.items() if k.startswith(verbs)})

    def pods(self) -> list[str]:
        """Names of all pods."""
        return [pod["metadata"]["name"] for pod in self.api.all("pods")]

    async def health(self, path: str = "healthz") -> int:
        """The status of a probe."""
        url = f"http://127.0.0.1:{self.port}/{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status


@pytest.fixture
async def api() -> AsyncIterator[FakeClusterApi]:
    """It has a claim, a node that is Ready, and a Service that is no job's."""
    async with FakeClusterApi() as api:
        await api.store_claim()
        await make_node(api, ready=True)
        await api.store("services", {"metadata": {"name": "web", "namespace": "a"}, "spec": {}})
        yield api


async def make_node(api: FakeClusterApi, *, ready: bool) -> None:
    """Node n1, in this state."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"conditions": conditions}
    await api.store("nodes", {"metadata": {"name": "n1"}, "spec": {}, "status": status})


async def make_job(api: FakeClusterApi) -> None:
    """Three workers and a coordinator."""
    metadata = {"namespace": "a", "name": "gpt"}
    await api.store("trainingjobs", {"metadata": metadata, "spec": make_spec()})


async def change_pod(api: FakeClusterApi, name: str, field: str, **values: Any) -> None:
    """Change spec or status of a pod, as scheduler and kubelet do."""
    pod = next(pod for pod in api.all("pods") if pod["metadata"]["name"] == name)
    await api.store("pods", {**pod, field: {**pod[field], **values}})


@pytest.fixture
async def running(
    api: FakeClusterApi, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[], Awaitable[Running]]]:
    """Starts an operator that may watch nodes, and each time another replica of it."""
    replicas: list[Running] = []
    reconcile = Reconciler.reconcile

    async def counted(self: Reconciler, key: Key, on_asking: Callable[[], None]) -> float | None:
        try:
            return await reconcile(self, key, on_asking)
        finally:
            for each in replicas:
                each.rounds += each.reconciler is self

    def made(self: Reconciler, *arguments: Any) -> None:
        init(self, *arguments)
        replicas[-1].reconciler = self

    async def start() -> Running:
        settings = SETTINGS.model_copy(update={"health_port": free_port()})
        replica = Running(api, Operator(settings, KEYS, refuse_to_end), settings.health_port)
        replicas.append(replica)
        await replica.operator.start(may_watch_nodes=True)
        return replica

    init = Reconciler.__init__
    monkeypatch.setattr(handlers, "login", api.login)
    monkeypatch.setattr(handlers, "STANDBY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(Reconciler, "__init__", made)
    monkeypatch.setattr(Reconciler, "reconcile", counted)
    yield start
    for each in replicas:
        await each.stop()


Start = Callable[[], Awaitable[Running]]


async def leader_at_rest(
    running: Start, make: Callable[[FakeClusterApi], Awaitable[None]], pods: int
) -> Running:
    """A leader that has made so many pods for new jobs, has said so, and has no round."""
    leader = await running()
    await make(leader.api)
    await until(f"{pods} pods", lambda: len(leader.pods()) == pods)

    def say_so() -> bool:
        statuses = [job["status"] for job in leader.api.all("trainingjobs")]
        return all("waits for a node" in status["message"] for status in statuses)

    await until("statuses of these pods", say_so)
    await leader.reads()
    return leader


async def ready_standby(running: Start) -> Running:
    """Another replica, which has listed all that it watches."""
    standby = await running()
    await until("a standby that is ready", lambda: standby.operator._is_filled)
    return standby


# --- what rounds read -----------------------------------------------------------------------------

OWNED = ("services", "networkpolicies", "poddisruptionbudgets")
"""Each is asked for by name until it is made: somebody else's may have the name."""


READ_ONCE = Counter({"get trainingjobs": 1})
"""Of a job that somebody has changed: its watch brings metadata alone."""


def most_reads(rounds: int) -> Counter[str]:
    """Of so many rounds of a job that has all of its objects: the claim alone."""
    return Counter({"get persistentvolumeclaims": rounds})


WRITES_OF_A_START = Counter(
    {
        **{f"create {kind}": 1 for kind in ("secrets", *OWNED)},
        "create pods": 4,
        "create events": 1,
        "patch trainingjobs": 2,
    }
)
"""Of a job of three workers."""


async def test_a_start_and_a_steady_round_read_only_what_has_no_memory(running: Start) -> None:
    operator = await running()
    await make_job(operator.api)
    await until("four pods", lambda: len(operator.pods()) == 4)
    reads = await operator.reads()
    assert operator.rounds <= 3
    assert operator.writes() <= WRITES_OF_A_START
    first_lists = Counter(f"list {kind}" for kind in ("trainingjobs", "pods", "nodes", *OWNED))
    by_name = Counter({"get services": 1, "get networkpolicies": 1, "get poddisruptionbudgets": 1})
    assert reads <= most_reads(operator.rounds) + first_lists + by_name + READ_ONCE
    operator.begin()
    operator.operator.queue.add(KEY)
    assert await operator.reads() <= most_reads(operator.rounds)
    operator.begin()
    (job,) = operator.api.all("trainingjobs")
    await operator.api.store("trainingjobs", job)
    await until("a round", lambda: operator.rounds > 0)
    assert await operator.reads() <= most_reads(operator.rounds) + READ_ONCE


async def test_a_replacement_takes_one_list_of_the_pods_of_its_job(running: Start) -> None:
    operator = await leader_at_rest(running, make_job, pods=4)
    operator.begin()
    await change_pod(operator.api, "gpt-w0-1", "status", phase="Failed")
    await until("a replacement", lambda: "gpt-w0-2" in operator.pods())
    reads = await operator.reads()
    assert operator.rounds <= 6
    assert reads <= most_reads(operator.rounds) + Counter(["list pods"])
    assert len(operator.pods()) == 5


async def test_a_node_that_stops_being_ready_wakes_its_jobs_and_is_read(running: Start) -> None:
    operator = await running()
    await make_job(operator.api)
    await until("four pods", lambda: len(operator.pods()) == 4)
    await change_pod(operator.api, "gpt-w0-1", "spec", nodeName="n1")

    def shows_node() -> bool:
        (job,) = operator.api.all("trainingjobs")
        return any(worker["node"] == "n1" for worker in job["status"].get("workers", ()))

    await until("the node in the status", shows_node)
    assert (await operator.reads())["get nodes"] == 0
    await make_node(operator.api, ready=False)
    await until("a read of the node", lambda: operator.api.requests["get nodes"] > 0)


async def test_one_of_fifty_namespaces_may_use_as_much_memory_as_one_alone() -> None:
    """Its ordinary jobs, of 30 kB, need not be asked for."""
    namespaces = tuple(f"n{number}" for number in range(50))
    memory = make_memory(namespaces=namespaces)
    for number in range(100):
        key = ("n7", f"gpt{number}")
        metadata = {"namespace": "n7", "name": key[1], "uid": key[1], "resourceVersion": "1"}
        memory.jobs.note(key, {"metadata": metadata, "spec": {"text": "x" * 30_000}})
    watches = memory.jobs._watches
    kept = [watches["n7"].cache.get(("n7", f"gpt{number}")) for number in range(100)]
    assert all(seen is not None and seen.value for seen in kept)


# --- the start of the workers ---------------------------------------------------------------------


async def test_jobs_and_probes_wait_until_memory_is_filled(
    api: FakeClusterApi, running: Start
) -> None:
    await make_job(api)
    api.withheld = {"nodes"}
    operator = await running()
    await until("other lists", lambda: api.requests["list trainingjobs"] == 1)
    await until("another try", lambda: api.requests["list nodes"] > 1)
    assert (operator.rounds, await operator.health()) == (0, 503)
    assert await operator.health("livez") == 200, "another process would wait as well"
    api.withheld.clear()
    await until("four pods", lambda: len(operator.pods()) == 4)
    assert await operator.health() == 200


@pytest.mark.parametrize("withheld", ["nodes", "all pods", *OWNED])
async def test_what_cannot_be_listed_delays_no_job_for_long(
    withheld: str,
    api: FakeClusterApi,
    running: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(handlers, "LISTED_SECONDS", 0.1)
    await make_job(api)
    api.withheld = {withheld}
    operator = await running()
    await until("four pods", lambda: len(operator.pods()) == 4)
    await operator.reads()
    assert len(api.all("services")) == 2
    assert await operator.health() == 200
    assert "not all could be listed" in caplog.text


async def test_a_job_that_has_pods_does_not_wait_for_the_list_of_jobs(
    api: FakeClusterApi, running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await running()
    await make_job(api)
    await until("four pods", lambda: len(leader.pods()) == 4)
    await leader.reads()
    await leader.stop()
    await change_pod(api, "gpt-w0-1", "status", phase="Failed")
    monkeypatch.setattr(handlers, "LISTED_SECONDS", 0.1)
    api.withheld = {"trainingjobs"}
    operator = await running()
    await until("a replacement", lambda: "gpt-w0-2" in operator.pods())


# --- two replicas ---------------------------------------------------------------------------------


async def test_a_standby_fills_its_memory_and_has_no_rounds(running: Start) -> None:
    leader = await running()
    await make_job(leader.api)
    await until("four pods", lambda: len(leader.pods()) == 4)
    standby = await ready_standby(running)
    await leader.reads()
    leader.begin()
    await change_pod(leader.api, "gpt-w0-1", "status", phase="Failed")
    await until("a replacement", lambda: "gpt-w0-2" in leader.pods())
    await leader.reads()
    assert (standby.rounds, len(standby.operator.queue), await standby.health()) == (0, 0, 200)


async def never(_: JobPods | RememberedObjects) -> None:
    """Instead of a list of all."""
    await asyncio.Event().wait()


async def test_the_next_leader_lists_no_pods_of_a_job_that_needs_nothing_and_makes_none_again(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobPods, "refresh", never)
    leader = await leader_at_rest(running, make_job, pods=4)
    standby = await ready_standby(running)
    standby.begin()
    await leader.stop()
    (lease,) = standby.api.all("leases")
    assert lease["spec"]["holderIdentity"] == ""
    await until("rounds", lambda: standby.rounds > 0)
    assert (await standby.reads())["list pods"] == 0
    assert len(standby.pods()) == 4
    (lease,) = standby.api.all("leases")
    assert lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_counts_on_its_first_lists_where_nobody_led_since(running: Start) -> None:
    """The former one gave the Lease back before this process began."""
    former = await leader_at_rest(running, make_job, pods=4)
    await former.stop()
    former.begin()
    again = await running()
    await until("a round", lambda: again.rounds > 0)
    assert (await again.reads())["list pods"] == 1
    assert len(again.pods()) == 4


async def test_a_replica_leads_before_it_lists_and_others_list_later_unless_it_ends(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both start at once, they would take the API server's time from each other."""
    monkeypatch.setattr(handlers, "STANDBY_PAUSE_SECONDS", 3600.0)
    leader = await leader_at_rest(running, make_job, pods=4)
    order = list(leader.api.requests)
    assert order.index("create leases") < order.index("list pods")
    standby = await running()
    leader.begin()
    await until("its looks at the Lease", lambda: leader.api.requests["get leases"] > 1)
    assert leader.api.requests["list pods"] == 0
    assert (await leader.health(), await standby.health()) == (200, 503)
    standby.begin()
    await leader.stop()
    await until("rounds", lambda: standby.rounds > 0)
    assert (await standby.reads())["list pods"] == 1
    assert (len(standby.pods()), await standby.health()) == (4, 200)


async def make_jobs(api: FakeClusterApi, count: int) -> None:
    """Jobs that are called gpt0, gpt1 and so on."""
    for number in range(count):
        metadata = {"namespace": "a", "name": f"gpt{number}"}
        await api.store("trainingjobs", {"metadata": metadata, "spec": make_spec()})


async def test_the_next_leader_of_many_jobs_lists_all_jobs_once_and_then_all_pods(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "FEW_JOBS", 2)
    leader = await leader_at_rest(running, functools.partial(make_jobs, count=4), pods=16)
    standby = await ready_standby(running)
    standby.begin()
    await leader.stop()
    await until("rounds", lambda: standby.rounds >= 4)
    await until("a list of all pods", lambda: standby.api.requests["list pods"] > 0)
    reads = await standby.reads()
    assert (reads["list pods"], reads["list trainingjobs"], reads["get trainingjobs"]) == (1, 1, 0)
    assert len(standby.pods()) == 16


async def test_the_next_leader_lists_the_pods_of_a_job_before_it_changes_anything_of_it(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory may lack pods that the former one has made."""
    monkeypatch.setattr(JobPods, "refresh", never)
    leader = await leader_at_rest(running, functools.partial(make_jobs, count=2), pods=8)
    standby = await ready_standby(running)
    await leader.stop()
    await until("rounds", lambda: standby.rounds >= 2)
    await standby.reads()
    standby.begin()
    (job,) = [one for one in leader.api.all("trainingjobs") if one["metadata"]["name"] == "gpt1"]
    await leader.api.store("trainingjobs", {**job, "spec": {**job["spec"], "suspend": True}})
    await until("it is suspended", lambda: len(standby.pods()) == 4)
    requests = [one for one in standby.api.requests if not one.startswith("get ")]
    assert requests[0] == "list pods"


async def test_the_next_leader_looks_first_at_jobs_that_have_pods(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may have been lost while nobody led."""
    leader = await running()
    for number in range(3):
        metadata = {"namespace": "a", "name": f"a{number}"}
        await leader.api.store(
            "trainingjobs", {"metadata": metadata, "spec": make_spec(suspend=True)}
        )
    await make_job(leader.api)
    await until("all pods", lambda: len(leader.pods()) == 4)
    await leader.reads()
    standby = await ready_standby(running)
    begun: list[Key] = []
    take = standby.operator.queue.take

    async def noted() -> tuple[Key, float]:
        taken = await take()
        begun.append(taken[0])
        return taken

    monkeypatch.setattr(standby.operator.queue, "take", noted)
    await leader.stop()
    await until("rounds of all jobs", lambda: len(set(begun)) == 4)
    assert begun[0] == KEY


async def test_a_job_that_lacks_a_pod_goes_first_when_nobody_was_there_to_see_it_go(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "FEW_JOBS", 0)
    former = await leader_at_rest(running, functools.partial(make_jobs, count=4), pods=16)
    await former.stop()
    for job in former.api.all("trainingjobs"):
        status = {**job["status"], "phase": "Running", "replicas": 3}
        await former.api.store("trainingjobs", {**job, "status": status})
    await former.api.remove("pods", "a", "gpt3-w1-1")
    begun: list[Key] = []
    take = WorkQueue.take

    async def noted(queue: WorkQueue[Key]) -> tuple[Key, float]:
        taken = await take(queue)
        begun.append(taken[0])
        return taken

    monkeypatch.setattr(WorkQueue, "take", noted)
    await running()
    await until("rounds of all jobs", lambda: len(set(begun)) == 4)
    assert begun[0] == ("a", "gpt3")


async def test_the_first_answer_for_a_job_that_lacks_a_pod_is_as_urgent_as_its_loss(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that has trained the first round only begins to ask the coordinator."""
    former = await leader_at_rest(running, functools.partial(make_jobs, count=2), pods=8)
    await former.stop()
    for job in former.api.all("trainingjobs"):
        trained = {"phase": "Running", "replicas": 3, "rendezvousGeneration": "1.1"}
        await former.api.store("trainingjobs", {**job, "status": {**job["status"], **trained}})
    for pod in former.api.all("pods"):
        status = {**pod["status"], "phase": "Running", "podIP": "127.0.0.1"}
        await former.api.store("pods", {**pod, "status": status})
    await former.api.remove("pods", "a", "gpt1-w1-1")
    asked: set[Key] = set()
    news: dict[Key, Urgency] = {}
    has_yet_to_ask, add = Reconciler._has_yet_to_ask, WorkQueue.add

    def noted_question(reconciler: Reconciler, job: AnyJob, pods: tuple[Pod, ...]) -> bool:
        asks = has_yet_to_ask(reconciler, job, pods)
        asked.update({job.key} if asks else ())
        return asks

    def noted_news(
        queue: WorkQueue[Key], key: Key, urgency: Urgency = Urgency.CHANGED, **options: Any
    ) -> None:
        if key in asked:
            news.setdefault(key, urgency)
        add(queue, key, urgency, **options)

    monkeypatch.setattr(Reconciler, "_has_yet_to_ask", noted_question)
    monkeypatch.setattr(WorkQueue, "add", noted_news)
    leader = await running()
    await until("news of both", lambda: len(news) == 2)
    assert news == {("a", "gpt0"): Urgency.CHANGED, ("a", "gpt1"): Urgency.LOST}
    await until("a replacement", lambda: "gpt1-w1-2" in leader.pods())


async def test_the_next_leader_asks_a_coordinator_that_its_memory_lacks_before_it_plans(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobPods, "refresh", never)
    leader = await leader_at_rest(running, make_job, pods=4)
    standby = await ready_standby(running)
    api = leader.api
    monkeypatch.setattr(leader.operator, "_add", lambda *_, **__: None)
    api.hides.add("pods")
    former = await api.remove("pods", "a", "gpt-c1")
    status = {**former["status"], "phase": "Running", "podIP": "127.0.0.1"}
    labels = {**former["metadata"]["labels"], names.TERM: "2"}
    metadata = {**former["metadata"], "name": "gpt-c2", "uid": "of-c2", "labels": labels}
    await api.store("pods", {**former, "metadata": metadata, "status": status})
    (job,) = api.all("trainingjobs")
    trained = {"phase": "Running", "rendezvousGeneration": "1.1", "coordinatorTerm": 2}
    await api.store("trainingjobs", {**job, "status": {**job["status"], **trained}})
    asks: list[bool] = []
    has_yet_to_ask = Reconciler._has_yet_to_ask

    def noted(reconciler: Reconciler, job: AnyJob, pods: tuple[Pod, ...]) -> bool:
        asks.append(has_yet_to_ask(reconciler, job, pods))
        return asks[-1]

    monkeypatch.setattr(Reconciler, "_has_yet_to_ask", noted)
    standby.begin()
    await leader.stop()
    await until("a round", lambda: standby.rounds > 0)
    assert asks[:2] == [False, True]
    assert "gpt-c3" not in standby.pods()


async def test_a_loss_stays_urgent_while_its_rounds_fail_or_the_job_has_just_changed(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = await leader_at_rest(running, make_job, pods=4)
    ends: Iterator[ClusterError | float] = iter(
        [ClusterError("PATCH", "/jobs", 503, "later"), CONFLICT_SECONDS]
    )
    again: list[tuple[bool, Urgency]] = []
    reconcile, done = Reconciler.reconcile, WorkQueue.done

    async def disturbed(
        reconciler: Reconciler, key: Key, on_asking: Callable[[], None]
    ) -> float | None:
        end = next(ends, None)
        if isinstance(end, ClusterError):
            raise end
        return await reconcile(reconciler, key, on_asking) if end is None else end

    def noted(queue: WorkQueue[Key], key: Key, **options: Any) -> None:
        again.append((options["failed"], options["urgency"]))
        done(queue, key, **options)

    monkeypatch.setattr(Reconciler, "reconcile", disturbed)
    monkeypatch.setattr(WorkQueue, "done", noted)
    await change_pod(leader.api, "gpt-w0-1", "status", phase="Failed")
    await until("a replacement", lambda: "gpt-w0-2" in leader.pods())
    assert again[:2] == [(True, Urgency.LOST), (False, Urgency.LOST)]
    await until("a whole round", lambda: again[-1] == (False, Urgency.ROUTINE))


async def test_a_new_leader_replaces_what_was_lost_before_it_lists_all(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "FEW_JOBS", 0)
    leader = await leader_at_rest(running, make_job, pods=4)
    standby = await ready_standby(running)
    at_refresh: list[list[str]] = []
    refresh = RememberedObjects.refresh

    async def noted(jobs: RememberedObjects) -> None:
        at_refresh.append(standby.pods())
        await refresh(jobs)

    monkeypatch.setattr(RememberedObjects, "refresh", noted)
    monkeypatch.setattr(leader.operator, "_add", lambda *_, **__: None)
    await change_pod(leader.api, "gpt-w0-1", "status", phase="Failed")
    await leader.stop()
    await until("a list of all", lambda: bool(at_refresh))
    assert "gpt-w0-2" in at_refresh[0]


async def test_a_loss_while_nobody_led_does_not_wait_for_the_list_of_all_jobs(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "FEW_JOBS", 0)
    leader = await leader_at_rest(running, make_job, pods=4)
    standby = await ready_standby(running)
    monkeypatch.setattr(RememberedObjects, "refresh", never)
    monkeypatch.setattr(leader.operator, "_add", lambda *_, **__: None)
    await change_pod(leader.api, "gpt-w0-1", "status", phase="Failed")
    await leader.stop()
    await until("a replacement", lambda: "gpt-w0-2" in standby.pods())


async def test_losses_that_a_tenant_made_up_neither_displace_nor_delay_those_of_others(
    api: FakeClusterApi,
) -> None:
    """Upon a change of the leader."""
    operator = Operator(SETTINGS, KEYS, refuse_to_end)
    memory = make_memory()
    memory.pods.trust()
    operator._add(KEY, Urgency.LOST)
    for number in range(300):
        operator._add(("foreign", f"made-up{number}"), Urgency.LOST)
    operator._leads = True
    await operator._begin_rounds(memory)
    key, _ = await operator.queue.take()
    assert key == KEY


async def test_a_replica_that_may_not_read_the_lease_is_not_ready(
    api: FakeClusterApi, running: Start, caplog: pytest.LogCaptureFixture
) -> None:
    api.unreadable = {"leases"}
    operator = await running()
    await until("a try", lambda: "Lease regroup-system/regroup-operator: GET" in caplog.text)
    assert (operator.rounds, await operator.health()) == (0, 503)
    assert await operator.health("livez") == 200
    api.unreadable.clear()
    await until("a replica that leads", lambda: operator.operator._leads)
    assert await operator.health() == 200


@pytest.mark.parametrize(
    ("write", "workers"),
    [("create pods", ["0", "0", "1", "2"]), ("patch trainingjobs", ["0", "1", "2"])],
)
async def test_a_write_that_arrives_when_another_leads_is_harmless(
    write: str, workers: list[str], api: FakeClusterApi, running: Start
) -> None:
    """A status is refused. One of two pods of a worker is deleted as soon as the coordinator says
    which one has a rank (`test_staffing.py`); here none runs.
    """
    leader = await running()
    await make_job(api)
    await until("four pods", lambda: len(leader.pods()) == 4)
    await leader.reads()
    standby = await ready_standby(running)
    api.held = {write}
    await change_pod(api, "gpt-w0-1", "status", phase="Failed")
    await until("a write", lambda: bool(api.late))
    api.held.clear()
    await leader.stop()
    await until("a replacement", lambda: len(standby.pods()) == 5)
    await standby.reads()
    (before,) = api.all("trainingjobs")
    api.let_through.set()
    await asyncio.gather(*api.late)
    standby.begin()
    standby.operator.queue.add(KEY)
    await standby.reads()
    assert live_workers(api) == workers
    (job,) = api.all("trainingjobs")
    assert job["status"]["restarts"] == before["status"]["restarts"]


def live_workers(api: FakeClusterApi) -> list[str]:
    """The index of each worker that has not failed, once for each of its pods."""
    labels = [p["metadata"]["labels"] for p in api.all("pods") if p["status"]["phase"] != "Failed"]
    return sorted(each["regroup.dev/index"] for each in labels if "regroup.dev/index" in each)


@pytest.mark.parametrize(
    ("changed", "is_progress"),
    [
        ({"status": {"progress": {"step": 2}, "coordinatorEvents": {"sequence": 9}}}, True),
        ({"status": {"progress": {"step": 1}, "phase": "Failed"}}, False),
        ({"metadata": {"annotations": {"regroup.dev/checkpoint-now": "1"}}}, False),
        ({"generation": 2}, False),
        ({"value": None}, False),
    ],
)
def test_a_job_that_shows_progress_alone_needs_no_round(
    changed: dict[str, Any], is_progress: bool
) -> None:
    def see(version: int, generation: int = 1, **fields: Any) -> Seen[str]:
        metadata = {"resourceVersion": str(version)}
        job: dict[str, Any] = {"metadata": metadata, "status": {"progress": {"step": 1}}}
        for name, value in fields.items():
            job[name] = {**job.get(name, {}), **(value or {})}
        text = None if "value" in fields else json.dumps(job)
        return Seen(KEY, "uid-1", version, generation, KEY, text, 10)

    change = Change(KEY, see(1), see(2, **changed))
    assert shows_progress_alone(change) == is_progress
    assert not shows_progress_alone(Change(KEY, None, see(2)))


def test_a_job_rests_between_rounds_and_a_large_one_longer() -> None:
    assert rest_after(9) == rest_after(100) == REST_SECONDS
    assert rest_after(2001) == pytest.approx(1.0, abs=0.01)


async def test_a_large_job_that_rests_gets_a_replacement_at_once(
    running: Start, api: FakeClusterApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "REST_SECONDS_EACH", 3600.0)
    await make_job(api)
    first = await running()
    await until("pods", lambda: len(first.pods()) == 4)
    await until("rest", lambda: KEY in first.operator.queue._resting)
    await change_pod(api, "gpt-w1-1", "status", phase="Failed", reason="Evicted")
    await until("a replacement", lambda: "gpt-w1-2" in first.pods())


async def test_what_a_round_takes_of_the_thread_is_charged_to_its_coordinator(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: list[tuple[Key, float, int]] = []
    monkeypatch.setattr(Coordinators, "charge_round", lambda _, *given: charged.append(given))
    operator = await running()
    await make_job(operator.api)
    await until("a round of four pods", lambda: any(pods == 4 for _, _, pods in charged))
    assert {key for key, _, _ in charged} == {KEY}
    assert all(0.0 < seconds < 1.0 for _, seconds, _ in charged)


async def test_rounds_of_one_namespace_that_do_not_end_leave_places_for_others(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Key] = []

    async def begin(_self: Reconciler, key: Key, _on_asking: Callable[[], None]) -> None:
        begun.append(key)
        if key[0] == "slow":
            await asyncio.Event().wait()

    monkeypatch.setattr(Reconciler, "reconcile", begin)
    queue = (await running()).operator.queue
    for number in range(ROUNDS_AT_ONCE):
        queue.add(("slow", f"gpt{number}"))
    await until("rounds", lambda: len(begun) >= ROUNDS_OF_A_NAMESPACE)
    for number in range(3):
        queue.add(("other", f"gpt{number}"))
    await until("those of the other", lambda: len(begun) >= ROUNDS_OF_A_NAMESPACE + 3)
    assert Counter(namespace for namespace, _ in begun) == {
        "slow": ROUNDS_OF_A_NAMESPACE,
        "other": 3,
    }
    assert ROUNDS_OF_A_NAMESPACE < ROUNDS_AT_ONCE


async def test_rounds_that_wait_for_pods_of_many_namespaces_take_no_place_of_others(
    running: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their coordinators answer late on purpose. A round gives its place back once."""
    asking: list[Key] = []
    under_way, most = 0, 0
    answers = asyncio.Event()

    async def begin(_self: Reconciler, key: Key, on_asking: Callable[[], None]) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        if key[0] != "other":
            on_asking()
            on_asking()
            asking.append(key)
            await answers.wait()

    monkeypatch.setattr(Reconciler, "reconcile", begin)
    queue = (await running()).operator.queue
    slow = [(f"slow{n}", f"gpt{m}") for n in range(4) for m in range(ROUNDS_OF_A_NAMESPACE + 1)]
    for key in slow:
        queue.add(key)
    await until("rounds that wait", lambda: len(asking) == 4 * ROUNDS_OF_A_NAMESPACE)
    queue.add(("other", "gpt"))
    await until("the round of another", lambda: not len(queue) - 4)
    answers.set()
    await until("all rounds", lambda: sorted(asking) == slow)
    for number in range(3 * ROUNDS_AT_ONCE):
        queue.add((f"other{number}", "gpt"))
    await until("their end", lambda: not len(queue) and not queue._working)
    assert most == ROUNDS_AT_ONCE
