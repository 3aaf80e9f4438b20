"""What wakes the operator: each event only puts the key of a job on the queue.

TrainingJobs, pods and nodes have a list and watch of our own, which reads within bounds: tenants
write the first two, and `metadata.managedFields` as deep as they like. What they show is in memory.
kopf is the shell: login, start and end. It watches nothing.

All replicas fill their memory. Only the leader has rounds, so follows coordinators, and writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, NoReturn

import kopf
from aiohttp import web

from regroup_operator.api import names
from regroup_operator.api.resource import Key, Object
from regroup_operator.api.settings import Settings
from regroup_operator.controller.cluster import Cluster, nodes_path
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.coordinator_requests import open_session
from regroup_operator.controller.credentials import login
from regroup_operator.controller.executor import Executor
from regroup_operator.controller.memory_watches import MemoryWatches
from regroup_operator.controller.metered_answers import Meter, metered
from regroup_operator.controller.node_watch import NodeWatch, keep_node
from regroup_operator.controller.operator_metrics import (
    count_added,
    count_reconcile,
    count_taken,
    job_series,
    show_depth,
)
from regroup_operator.controller.operator_traces import OperatorTraces
from regroup_operator.controller.reconcile import CONFLICT_SECONDS, Reconciler
from regroup_operator.controller.work_queue import Urgency, WorkQueue
from regroup_operator.decide.job_projection import lasting
from regroup_operator.errors import ClusterError, OperatorError
from regroup_operator.informer.api_connection import ApiConnection
from regroup_operator.informer.collection import Collection
from regroup_operator.informer.job_memory import JobMemory
from regroup_operator.informer.job_pods import JobPods, OwnedPod, is_loss
from regroup_operator.informer.list_watch import ListWatch
from regroup_operator.informer.object_cache import Change, ObjectCache
from regroup_operator.informer.recent_losses import RecentLosses
from regroup_operator.leadership.election import Election, end_process, new_identity
from regroup_operator.leadership.lease_requests import LeaseRequests
from regroup_operator.observe.observed import NodeState, Pod
from regroup_operator.render.keyring import Keyring
from regroup_trainer.system.server_connections import Connections, Listening

ROUNDS_AT_ONCE = 10
"""Without those that only wait for pods of their job."""
ROUNDS_OF_A_NAMESPACE = 8
"""With those: the rest is for others, however long the rounds of one namespace take."""
PROBES_AT_ONCE = 32
"""Connections to /healthz and /livez."""
ERROR_BACKOFFS = (0.1, 0.5, 1, 2, 5, *([10] * 60))
"""Pauses of kopf's requests at its start during an outage of the API server. By default kopf ends
the process after a minute.
"""
LISTED_SECONDS = 30.0
"""The workers start once memory has listed all, or after so long. Of what it has not listed, rounds
ask the API server: the right to list one namespace may be missing.
"""
FEW_JOBS = 64
"""Of so many jobs a new leader reads each. With more it lists all once."""
STANDBY_PAUSE_SECONDS = 5.0
"""How long a replica that does not lead waits before it lists: a leader that has just started lists
at the same time, of the same API server.
"""
REFRESH_SECONDS = 10.0
"""The longest wait for this list. Losses do not wait."""
REFRESH_AGAIN_SECONDS = 60.0
"""After a list of all pods that failed."""
LOST_FIRST_SECONDS = 2.0
"""How long it waits for jobs that have lost something: it keeps this process and the API server
busy.
"""
LOSSES_REMEMBERED = 256
"""Jobs that have lost something while this replica stood by: the leader may not have acted."""
MOST_NODE_BYTES = 32 * 1024 * 1024
"""Of all nodes in memory, about."""

REST_SECONDS, REST_SECONDS_EACH = 0.1, 0.0005
"""How long a job rests after a round, so that what changes within a moment is one more round and
one write of its status; and for each of its pods. A round looks at all pods, and while a job starts
each of them changes some times.
"""

log = logging.getLogger(__name__)


class Operator:
    """The running operator: the queue, its workers, and what they share. kopf's startup builds
    it.
    """

    def __init__(
        self,
        settings: Settings,
        keys: Keyring,
        end: Callable[[str], NoReturn] = end_process,
        traces: OperatorTraces | None = None,
    ) -> None:
        self._settings = settings
        self._traces = traces
        self._keys = keys
        self._end = end
        self.queue: WorkQueue[Key] = WorkQueue(
            group_of=lambda key: key[0],
            most_of_a_group=ROUNDS_OF_A_NAMESPACE,
            on_add=count_added,
        )
        show_depth(lambda: len(self.queue))
        self._is_filled = False
        self._leads = False
        self._lost = RecentLosses(LOSSES_REMEMBERED)
        """Jobs that have lost something while this replica stood by."""
        self._lacking: set[Key] = set()
        """Jobs that have lost something, and have had no whole round since. A first answer of the
        coordinator of such a job is as urgent, and so is another try.
        """
        self._charge_round: Callable[[Key, float, int], None] = lambda *_: None
        """Called with what a round of a job with so many pods took of the thread, in seconds."""
        self._closing = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._rounds: set[asyncio.Task[None]] = set()

    async def start(self, *, may_watch_nodes: bool) -> None:
        """Open the clients, and start the workers once memory is filled and this replica leads.
        `may_watch_nodes`: whether its rights allow it.
        """
        opened = self._closing.enter_async_context
        lease = LeaseRequests(await opened(ApiConnection(login)), self._settings.lease)
        election = Election(lease, new_identity(), self._end)
        cluster = await opened(Cluster(login, election.seconds_left))
        session = await opened(open_session(election.seconds_left))
        coordinators = Coordinators(session, self._has_news, election.seconds_left)
        self._charge_round = coordinators.charge_round
        states = ObjectCache[NodeState](MOST_NODE_BYTES, MOST_NODE_BYTES)
        nodes = NodeWatch(cluster, states if may_watch_nodes else None)
        filling = MemoryWatches(cluster, self._settings.namespaces or (None,))
        memory = filling.memory(self._changed, self._pod_changed)
        executor = Executor(cluster, memory, coordinators, self._settings, self._keys, self._traces)
        reconciler = Reconciler(cluster, coordinators, executor, nodes, self._settings, job_series)
        watches = filling.watches
        if may_watch_nodes:
            watches.append(self._node_watch(cluster.connection, states, nodes))
        self._run(self._lead(election, reconciler, memory, watches))
        health = await serve_health(
            self._settings.health_port,
            lambda: len(self.queue),
            lambda: self._is_filled and election.has_read.is_set(),
        )
        self._closing.push_async_callback(health.cleanup)
        self._closing.callback(coordinators.close)
        self._closing.push_async_callback(election.release)  # first: another replica waits for it

    async def _lead(
        self,
        election: Election,
        reconciler: Reconciler,
        memory: JobMemory,
        watches: list[ListWatch[Any]],
    ) -> None:
        """Fill memory, and lead as soon as nobody else does. Whoever led before it listed misses
        nothing that a former leader has made.
        """
        led = await election.win(STANDBY_PAUSE_SECONDS)
        if led:
            self._run(election.hold())
        self._tasks += [asyncio.create_task(watch.run()) for watch in watches]
        await self._fill(watches)
        if led and all(watch.listed.is_set() for watch in watches):
            memory.pods.trust()
        if not led:
            await election.win()
            self._run(election.hold())
        self._leads = True
        self._run(self._work(reconciler, memory.pods))
        self._run(self._begin_rounds(memory))

    def _run(self, part: Coroutine[Any, Any, None]) -> None:
        """Run a part without which this replica is of no use: the process ends where it fails."""
        task = asyncio.create_task(part)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    async def _begin_rounds(self, memory: JobMemory) -> None:
        """Have a first round for each job: those that have lost something at once, the others once
        memory has their statuses. Those that lack pods which their status counts go first, then
        those that have pods, before those that wait or have ended: a node may have been lost
        meanwhile. A list of jobs may take minutes; those that have pods do not wait for it, and
        each of its pages brings others.
        """
        for key in self._lost.take():
            self._add(key, Urgency.LOST)
        if len(memory.jobs.all_keys()) > FEW_JOBS and not memory.pods.has_all:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOST_FIRST_SECONDS):
                    await self.queue.until(lambda: not self._lacking)
            await self._refresh("jobs", memory.jobs.refresh(), REFRESH_SECONDS)
        found = dict[Key, Urgency]()
        for key in sorted(memory.pods.jobs().union(memory.jobs.all_keys())):
            found[key] = first_urgency(memory.jobs.known(key), memory.pods.known(key))
            await asyncio.sleep(0)  # there may be thousands
        for key, urgency in found.items():
            self._add(key, urgency)
        while not memory.pods.has_all:  # until then a round lists its job's pods before it acts
            await self._refresh("pods", memory.pods.refresh())
            if not memory.pods.has_all:
                await asyncio.sleep(REFRESH_AGAIN_SECONDS)

    async def _refresh(
        self, what: str, lists: Awaitable[None], seconds: float | None = None
    ) -> None:
        """Wait for lists of all. Without them each round reads what it needs."""
        try:
            async with asyncio.timeout(seconds):
                await lists
        except (ClusterError, TimeoutError) as error:
            log.warning("cannot list all %s, so rounds read what they need: %r", what, error)
        except Exception:
            log.exception("cannot list all %s, so rounds read what they need", what)

    def _ended(self, part: asyncio.Task[None]) -> None:
        if not part.cancelled() and (error := part.exception()):
            self._end(f"a part of the operator failed: {error!r}")

    async def _fill(self, watches: list[ListWatch[Any]]) -> None:
        try:
            async with asyncio.timeout(LISTED_SECONDS):
                for watch in watches:
                    await watch.listed.wait()
        except TimeoutError:
            log.warning("not all could be listed within %g s: jobs wait no longer", LISTED_SECONDS)
        self._is_filled = True

    async def stop(self) -> None:
        """End the workers, let another replica lead, follow no coordinator any more, and close the
        clients. The jobs train on.
        """
        tasks = [*self._tasks, *self._rounds]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.queue.close()
        await self._closing.aclose()

    def _node_watch(
        self, connection: ApiConnection, states: ObjectCache[NodeState], nodes: NodeWatch
    ) -> ListWatch[NodeState]:
        def changed(change: Change[NodeState]) -> None:
            for job in nodes.changed(change.subject[1]):
                self._add(job, Urgency.LOST)

        return ListWatch(Collection(connection, nodes_path()), states, changed, keep_node)

    def _has_news(self, key: Key) -> None:
        """The coordinator of this job has news, or no answer."""
        self.queue.add(key, Urgency.LOST if key in self._lacking else Urgency.CHANGED)

    def _pod_changed(self, change: Change[OwnedPod]) -> None:
        self._add(change.subject, Urgency.LOST if is_loss(change) else Urgency.CHANGED)

    def _changed(self, change: Change[str]) -> None:
        if self._leads and shows_progress_alone(change):
            return
        # A status that the operator itself has written must not repeat a refused request at once.
        known = Urgency.ROUTINE if change.same_spec else Urgency.CHANGED
        urgency = known if change.before else Urgency.NEW
        self._add(change.subject, urgency, patient=change.same_spec)

    def _add(self, key: Key, urgency: Urgency, *, patient: bool = False) -> None:
        """A standby keeps few keys: those of jobs that are gone would gather."""
        if self._leads:
            if urgency is Urgency.LOST:
                self._lacking.add(key)
            self.queue.add(key, urgency, patient=patient)
        elif urgency is Urgency.LOST:
            self._lost.add(key)

    async def _work(self, reconciler: Reconciler, pods: JobPods) -> None:
        """Begin a round whenever there is a place for it and a job that needs one."""
        places = asyncio.Semaphore(ROUNDS_AT_ONCE)
        while True:
            await places.acquire()
            key, waited = await self.queue.take()
            count_taken(waited)
            task = asyncio.create_task(self._take_turn(reconciler, pods, key, places.release))
            self._rounds.add(task)
            task.add_done_callback(self._rounds.discard)

    async def _take_turn(
        self, reconciler: Reconciler, pods: JobPods, key: Key, release: Callable[[], None]
    ) -> None:
        """One round of a job. Its place is given back once."""
        with contextlib.ExitStack() as place:
            place.callback(release)
            started = time.monotonic()
            cost = Meter()
            failed, again = await metered(self._reconcile(reconciler, key, place.close), cost)
            self._charge_round(key, cost.take(), pods.count(key))
            count_reconcile(time.monotonic() - started, failed=failed)
            goes_on = again is not None and again <= CONFLICT_SECONDS
            if not (failed or goes_on or reconciler.awaits_answer(key)):
                self._lacking.discard(key)
            urgency = Urgency.LOST if key in self._lacking else Urgency.ROUTINE
            if again is not None:
                self.queue.add_after(key, max(0.0, again), urgency)
            rest = rest_after(pods.count(key))
            self.queue.done(key, failed=failed, rest=rest, urgency=urgency)

    async def _reconcile(
        self, reconciler: Reconciler, key: Key, give_back: Callable[[], None]
    ) -> tuple[bool, float | None]:
        """Reconcile once. Returns whether it failed, and the seconds until the next round."""
        try:
            return False, await reconciler.reconcile(key, give_back)
        except OperatorError as error:
            log.warning("%s/%s: %s", *key, error)
        except Exception:
            log.exception("%s/%s: reconcile failed", *key)
        return True, None


def shows_progress_alone(change: Change[str]) -> bool:
    """Whether nothing of a job differs but how far it has come. A round has written that."""
    before, after = change.before, change.after
    if not (change.same_spec and before and before.value and after and after.value):
        return False
    return lasting(json.loads(before.value)) == lasting(json.loads(after.value))


def first_urgency(job: Object | None, pods: Sequence[Pod]) -> Urgency:
    """How urgent the first round of a job with these pods is, after a change of the leader. None:
    more than its metadata is not known.
    """
    status = (job or {}).get("status", {})
    alive = Counter(pod.role for pod in pods if pod.alive)
    lacks_worker = alive[names.WORKER] < status.get("replicas", 0)
    lacks_coordinator = status.get("coordinatorTerm", 0) > 0 and not alive[names.COORDINATOR]
    if status.get("phase") == "Running" and (lacks_worker or lacks_coordinator):
        return Urgency.LOST
    return Urgency.CHANGED if pods else Urgency.ROUTINE


def rest_after(pods: int) -> float:
    """Seconds that a job with so many pods rests after a round."""
    return max(REST_SECONDS, REST_SECONDS_EACH * pods)


async def serve_health(
    port: int, waiting: Callable[[], int], is_started: Callable[[], bool]
) -> Listening:
    """Serve /healthz, which answers how many jobs wait, on all addresses; with status 503 until the
    operator has started. /livez answers 200 as long as the event loop turns, whatever it waits for:
    another process would wait for the same. The caller cleans up. Idle connections are bounded:
    whoever reaches the port can open them, and a probe must get through. Raises OSError.
    """
    connections = Connections(lambda: PROBES_AT_ONCE)

    async def answer(request: web.Request) -> web.Response:
        connections.request(request.transport)
        serves = request.path == "/livez" or is_started()
        return web.json_response({"waiting": waiting()}, status=200 if serves else 503)

    application = web.Application()
    application.router.add_get("/healthz", answer)
    application.router.add_get("/livez", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    return await connections.listen(runner, None, port)


def register(registry: kopf.OperatorRegistry, operator: Operator, *, may_watch_nodes: bool) -> None:
    """Have kopf start and end the operator."""

    @kopf.on.login(registry=registry)
    async def _login(**_: Any) -> kopf.ConnectionInfo:
        return login()

    @kopf.on.startup(registry=registry)
    async def _startup(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await operator.start(may_watch_nodes=may_watch_nodes)

    @kopf.on.cleanup(registry=registry)
    async def _cleanup(**_: Any) -> None:
        await operator.stop()


def configure(settings: kopf.OperatorSettings) -> None:
    """Set kopf's own settings."""
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.networking.error_backoffs = ERROR_BACKOFFS
