"""Any course of a job whose operator gets answers late, twice or never, learns late what happens,
and dies: no pod is made twice, and each failure is counted and reported once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import ClientSession
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.executor import Executor
from regroup_operator.controller.memory_watches import MemoryWatches
from regroup_operator.controller.node_watch import NodeWatch
from regroup_operator.controller.operator_metrics import JobSeries
from regroup_operator.controller.reconcile import Reconciler
from regroup_operator.errors import OperatorError
from tests.support.fake_cluster_api import FakeClusterApi
from tests.support.operator_simulation import make_spec
from tests.support.rendering import KEYS, SETTINGS
from tests.support.waiting import until

Json = dict[str, Any]
T = TypeVar("T")
KEY = ("a", "gpt")
WORKERS = 3
DEADLINE_SECONDS = 60.0
MOST_ROUNDS = 12
"""Until a job is whole, once nothing is late any more."""
WATCHED = ("trainingjobs", "pods", "services", "networkpolicies", "poddisruptionbudgets")
WRITES = ("create pods", "delete pods", "patch trainingjobs", "create events", "patch services")


class Replica:
    """One process of the operator, with the memory that its watches fill. `go_on` has a round."""

    def __init__(self, api: FakeClusterApi) -> None:
        self._api = api
        self._closing = contextlib.AsyncExitStack()
        self._watches: list[asyncio.Task[None]] = []
        self.round: asyncio.Task[float | None] | None = None
        """The round that waits for an answer."""
        self._held_before = 0
        """Writes of others that were held when it began."""

    async def start(self) -> None:
        """Fill the memory."""
        opened = self._closing.enter_async_context
        cluster, session = await opened(Cluster(self._api.login)), await opened(ClientSession())
        self._places = cluster.connection._places
        coordinators = Coordinators(session, lambda _key: None)
        filling = MemoryWatches(cluster, (None,))
        memory = filling.memory(lambda _: None, lambda _: None)
        executor = Executor(cluster, memory, coordinators, SETTINGS, KEYS)
        nodes = NodeWatch(cluster, None)
        self._reconciler = Reconciler(cluster, coordinators, executor, nodes, SETTINGS, JobSeries())
        self._memory = filling.watches
        self._watches = [asyncio.create_task(watch.run()) for watch in filling.watches]
        for watch in filling.watches:
            await watch.listed.wait()
        self._closing.callback(coordinators.close)

    async def end(self) -> None:
        """As a crash: nobody waits for answers any more."""
        tasks = [*self._watches, *([self.round] if self.round else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._closing.aclose()

    async def go_on(self) -> None:
        """Go on with the round, or begin one, until it ends or waits for held writes alone, and
        memory has what its watches may bring.
        """
        if self.round is None:
            self._held_before = self._api.count_held()
            self.round = asyncio.create_task(self._reconciler.reconcile(KEY))
        task = self.round
        rests = lambda: (task.done() or self._waits()) and self.has_caught_up()  # noqa: E731
        await until("the end of a round", rests)
        if task.done():
            self.round = None
            with contextlib.suppress(OperatorError):  # the queue would have another round
                task.result()

    def _waits(self) -> bool:
        held = self._api.count_held() - self._held_before
        return 0 < held == sum(self._places._taken.values())

    def has_caught_up(self) -> bool:
        """Whether its watches have brought what they may."""
        newest = ((watch, self._api.newest(watch._collection.resource)) for watch in self._memory)
        return all(watch.cache.version >= version for watch, version in newest)


class Course(RuleBasedStateMachine):
    """A job of three workers that restarts whatever fails, and one operator after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._api = FakeClusterApi()
        self._replica = Replica(self._api)
        self._standby: Replica | None = None
        """The next one that leads, if it has begun already."""
        self._failed = 0
        """Workers that were made to fail."""
        self._crashed_with_late = False
        self._late_pods: set[str] = set()
        """Those that were made for an operator that had ended, or did not wait any longer."""
        self._term = 0

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(asyncio.wait_for(what, DEADLINE_SECONDS))

    @initialize()
    def begin(self) -> None:
        async def begin() -> None:
            await self._api.__aenter__()
            spec = make_spec(restartPolicy={"maxRestarts": -1, "backoffSeconds": 0})
            await self._api.store_job(spec)
            await self._replica.start()

        self._run(begin())

    # --- the operator -----------------------------------------------------------------------------

    @rule(rounds=st.integers(1, 3))
    def have_rounds(self, rounds: int) -> None:
        for _ in range(rounds):
            self._run(self._replica.go_on())

    @rule()
    def die(self) -> None:
        """Another replica leads. Its writes are not late."""
        self._crashed_with_late |= self._api.count_held() > 0
        self._api.held.clear()

        following = self._next()
        self._run(self._replica.end())
        self._replica, self._standby = following, None

    @rule()
    def stand_by(self) -> None:
        """Another replica fills its memory, and leads when this one has died."""
        self._next()

    def _next(self) -> Replica:
        if self._standby is None:
            self._standby = Replica(self._api)
            self._run(self._standby.start())
        return self._standby

    # --- the network ------------------------------------------------------------------------------

    @rule(after=st.integers(1, 6), applied=st.booleans())
    def lose_an_answer(self, after: int, applied: bool) -> None:
        """Of one of the next writes. The operator sees that its connection is closed."""
        self._api.lose_answer_at(self._api.writes + after, applied=applied, breaks=True)

    @precondition(lambda self: self._api.count_held() == 0)
    @rule(repeats=st.booleans())
    def repeat_writes(self, repeats: bool) -> None:
        self._api.repeats = repeats

    @precondition(lambda self: self._api.count_held() == 0)
    @rule(write=st.sampled_from(WRITES))
    def hold(self, write: str) -> None:
        """From now on these come late."""
        self._api.held = {write}

    @rule()
    def let_through(self) -> None:
        """What is late is carried out, whether anybody waits for it or not."""
        before, waiting = set(self._api.created.get("pods", ())), self._replica.round
        nobody_waits = self._crashed_with_late or waiting is None or waiting.done()

        async def let_through() -> None:
            self._api.held.clear()
            self._api.let_through.set()
            await asyncio.gather(*self._api.late, return_exceptions=True)
            self._api.late.clear()
            self._api.let_through.clear()

        self._run(let_through())
        self._catch_up()
        if nobody_waits:
            self._late_pods |= set(self._api.created.get("pods", ())) - before
        self._crashed_with_late = False
        if self._replica.round is not None:
            self._run(self._replica.go_on())

    @rule()
    def cover_watches(self) -> None:
        """Memory is behind from now on."""
        self._api.hides.update(WATCHED)

    @rule()
    def cover_watches_of_pods(self) -> None:
        """From now on memory shows of pods less than of their job."""
        self._api.hides.add("pods")

    @rule()
    def uncover_watches(self) -> None:
        self._run(self._api.show_all())
        self._catch_up()

    def _catch_up(self) -> None:
        replicas = [each for each in (self._replica, self._standby) if each]
        self._run(until("their watches", lambda: all(r.has_caught_up() for r in replicas)))

    # --- the cluster ------------------------------------------------------------------------------

    def _live(self) -> list[Json]:
        return [pod for pod in self._api.all("pods") if pod["status"]["phase"] != "Failed"]

    @rule(draw=st.data())
    def fail_a_worker(self, draw: st.DataObject) -> None:
        workers = [pod for pod in self._live() if index_of(pod) is not None]
        if workers:
            pod = draw.draw(st.sampled_from(workers), label="pod")
            self._run(self._api.fail(pod))
            self._failed += 1

    @rule(draw=st.data())
    def delete_a_pod(self, draw: st.DataObject) -> None:
        if pods := self._live():
            pod = draw.draw(st.sampled_from(pods), label="pod")
            self._run(self._api.remove("pods", "a", pod["metadata"]["name"]))

    @rule()
    def touch_the_job(self) -> None:
        """A user writes an annotation: what is written over the former version is refused."""
        job = self._job()
        metadata = {**job["metadata"], "annotations": {"touched": str(self._api.version)}}
        self._run(self._api.store("trainingjobs", {**job, "metadata": metadata}))

    def _job(self) -> Json:
        (job,) = self._api.all("trainingjobs")
        return job

    # --- what holds -------------------------------------------------------------------------------

    @invariant()
    def no_pod_is_made_twice(self) -> None:
        made = self._api.created.get("pods", [])
        assert len(made) == len(set(made))

    @invariant()
    def only_a_late_pod_stands_beside_another(self) -> None:
        punctual = (p for p in self._live() if p["metadata"]["name"] not in self._late_pods)
        counts = Counter(map(index_of, punctual))
        assert all(count == 1 for count in counts.values()), counts

    @invariant()
    def no_failure_is_counted_twice(self) -> None:
        if self._api.all("trainingjobs"):
            assert self._job().get("status", {}).get("podFailures", 0) <= self._failed

    @invariant()
    def terms_rise(self) -> None:
        if self._api.all("trainingjobs"):
            term = self._job().get("status", {}).get("coordinatorTerm", 0)
            assert term >= self._term
            self._term = term

    def teardown(self) -> None:
        try:
            if self._api.url:
                self._end_whole()
        finally:
            for replica in filter(None, (self._replica, self._standby)):
                self._run(replica.end())
            self._run(self._api.__aexit__(None, None, None))
            self._loop.close()

    def _end_whole(self) -> None:
        """When nothing fails any more, the next operator makes the job whole."""
        self._api.lose_answer_at(0, applied=False)
        self._api.repeats = False
        self.uncover_watches()
        self.let_through()
        self.die()
        self._catch_up()
        versions = [-1]
        while versions[-1] != self._api.version:
            assert len(versions) <= MOST_ROUNDS, "the job does not come to rest"
            versions.append(self._api.version)
            self._run(self._replica.go_on())
        assert set(map(index_of, self._live())) == {None, *map(str, range(WORKERS))}
        self.only_a_late_pod_stands_beside_another()
        status, events = self._job()["status"], self._api.all("events")
        assert status["podFailures"] == self._failed
        reported = [event for event in events if event["reason"] == "WorkerLost"]
        assert len(reported) == self._failed or self._failed > WORKERS, "more are summed up"
        remembered = {event["name"] for event in status["recentEvents"]}
        assert remembered <= {event["metadata"]["name"] for event in events}


def index_of(pod: Json) -> str | None:
    """Of a worker; None of a coordinator."""
    found: str | None = pod["metadata"]["labels"].get("regroup.dev/index")
    return found


TestCourse = Course.TestCase
TestCourse.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
