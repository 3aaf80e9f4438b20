"""Executes the actions of a plan: the only place where a decision becomes a request."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus

from regroup_operator.api import names
from regroup_operator.api.resource import Key, Object
from regroup_operator.api.settings import Settings
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.followed_coordinator import Target
from regroup_operator.controller.operator_traces import OperatorTraces
from regroup_operator.controller.refusals import NEEDED_BY_PODS, PODS
from regroup_operator.decide.job_account import merge_ledgers
from regroup_operator.decide.plan import (
    Action,
    CreateClaim,
    CreateCoordinator,
    CreateStore,
    CreateWorker,
    DeleteJob,
    DeletePod,
    EnsureAccess,
    EnsureDisruptionBudget,
    EnsureService,
    EnsureToken,
    PostLost,
    PutDesired,
    SendAddress,
)
from regroup_operator.errors import (
    ChangedPodError,
    ClusterError,
    CoordinatorError,
    OperatorError,
)
from regroup_operator.informer.job_memory import JobMemory
from regroup_operator.observe.kubernetes_objects import read_service
from regroup_operator.observe.observed import AnyJob, Job, Observed, Pod, Service
from regroup_operator.render import torchrun_workload, workload
from regroup_operator.render.keyring import Keyring
from regroup_operator.render.pods import LAUNCHER_OBJECTS
from regroup_operator.render.worker_places import at_place
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.message import listed, named, shorten

FIRST_AT_ONCE, MOST_AT_ONCE = 4, 16
"""Requests of one kind that are sent at the same time for one job: in its first batch, and in any.
"""

LINE_LIMIT = 500
"""Characters of an action in the log."""
MOST_RENDERED = 16
"""Jobs of which the last worker is kept as it was rendered: more than have rounds at the same time.
"""
AGENTS_AT_ONCE = 64
"""Agents of a job to which its coordinator's address is sent at the same time."""

log = logging.getLogger(__name__)


class Executor:
    """Sends what actions stand for to the API server and to coordinators."""

    def __init__(
        self,
        cluster: Cluster,
        memory: JobMemory,
        coordinators: Coordinators,
        settings: Settings,
        keys: Keyring,
        traces: OperatorTraces | None = None,
    ) -> None:
        self._cluster = cluster
        self.traces = traces
        self.memory = memory
        self._coordinators = coordinators
        self._settings = settings
        self._keys = keys
        self._tokens_sent: dict[Key, float] = {}
        """Monotonic time."""
        self._unreached: dict[Key, dict[str, float]] = {}
        """UID of a worker -> since when the coordinator's address cannot be sent to it."""
        self._workers: dict[Key, tuple[tuple[Job, str, tuple[str, ...]], Object]] = {}
        """A worker of each job, and what it was rendered of, the newest last."""

    def token_sent_seconds(self, key: Key) -> float | None:
        """Seconds since the Secret of a job was last sent; None: never."""
        sent = self._tokens_sent.get(key)
        return None if sent is None else time.monotonic() - sent

    def token_key(self, job: AnyJob) -> str:
        """Name of the key for the token of a job that starts now; empty when it needs none."""
        return self._keys.current if LAUNCHER_OBJECTS[job.launcher].has_token else ""

    def unreached_seconds(self, key: Key) -> dict[str, float]:
        """UID of a worker -> for how long the coordinator's address could not be sent to it."""
        now = time.monotonic()
        return {uid: now - since for uid, since in self._unreached.get(key, {}).items()}

    def note_plan(self, key: Key, actions: Iterable[Action]) -> None:
        """Workers that get no address now count anew when they do: what stood in the way of one
        attempt long ago says nothing about them.
        """
        if not any(isinstance(action, SendAddress) for action in actions):
            self._unreached.pop(key, None)

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._tokens_sent.pop(key, None)
        self._unreached.pop(key, None)
        self._workers.pop(key, None)
        if self.traces is not None:
            self.traces.forget(key)

    def rehearse(self, actions: Iterable[Action], job: AnyJob, observed: Observed) -> None:
        """Render one object of each kind that these actions make, to no effect. Raises what
        executing them would raise.
        """
        firsts = {type(action): action for action in reversed(tuple(actions))}
        for action in firsts.values():
            if isinstance(action, Making):
                self._rendered(action, _valid(job), observed)

    async def execute_all(
        self, batch: tuple[Action, ...], job: AnyJob, observed: Observed
    ) -> tuple[Observed, list[tuple[Action, OperatorError]]]:
        """Execute actions at the same time. Returns what is observed after them, with the Service
        that they made, and the actions that failed. Raises any other error once all have ended.
        """
        tasks: list[asyncio.Task[Service | Exception | None]] = []
        async with asyncio.TaskGroup() as group:
            for action in batch:
                tasks.append(group.create_task(self._attempt(action, job, observed)))
                await asyncio.sleep(0)  # writing a large pod as JSON takes milliseconds
        failed: list[tuple[Action, OperatorError]] = []
        for action, result in zip(batch, (task.result() for task in tasks), strict=True):
            if isinstance(result, OperatorError):
                failed.append((action, result))
            elif isinstance(result, Exception):
                raise result
            elif result is not None:
                observed = replace(observed, service=result)
        return observed, failed

    async def _attempt(
        self, action: Action, job: AnyJob, observed: Observed
    ) -> Service | Exception | None:
        """Execute one action. Returns also what it raises: the others go on."""
        try:
            return await self.execute(action, job, observed)
        except Exception as error:
            return error

    async def execute(self, action: Action, job: AnyJob, observed: Observed) -> Service | None:
        """Execute one action. `job` has the status that was just written. Returns the Service that
        it made or changed. Raises ClusterError or CoordinatorError, and KeyMissingError where the
        job's token is needed and cannot be derived.
        """
        log.info("%s/%s: %s", job.namespace, job.name, _short(action))
        match action:
            case EnsureAccess():
                await self._ensure_access(job, observed)
            case EnsureToken():
                await self._repair_token(job)
            case EnsureService(term):
                return read_service(await self._ensure_service(term, job, observed))
            case SendAddress(pods):
                await self._send_address(pods, job, observed)
            case EnsureDisruptionBudget(fewest):
                await self._ensure_budget(fewest, job, observed)
            case DeletePod(pod):
                answer = await self._cluster.delete_pod(
                    job.namespace, pod.name, pod.uid, action.grace_seconds
                )
                self._note(answer)
            case DeleteJob():
                await self._cluster.delete_job(job.namespace, job.name, job.uid)
            case PostLost(members, reason):
                await self._post_lost(Lost(members=members, reason=reason), job, observed)
            case _:
                await self._execute_by_spec(action, _valid(job), observed)
        return None

    async def _execute_by_spec(self, action: Action, job: Job, observed: Observed) -> None:
        """The actions that render something of the spec."""
        match action:
            case CreateClaim():
                await self._cluster.create_claim(self._rendered(action, job, observed))
            case CreateWorker(index, incarnation):
                document = self._rendered(action, job, observed)
                self.memory.worker_ends.note_request(job, index, incarnation)
                await self._create_pod(document)
            case CreateCoordinator() | CreateStore():
                await self._create_pod(self._rendered(action, job, observed))
            case PutDesired():
                await self._put_desired(job, observed)

    async def _create_pod(self, document: Object) -> None:
        """Create a pod. One that would not be seen as this pod is deleted again: each round would
        miss it, and make another. Raises ChangedPodError then.
        """
        answer = await self._cluster.create_pod(document)
        if answer and (lost := _lost_marks(document["metadata"], answer["metadata"])):
            made = answer["metadata"]
            await self._cluster.delete_pod(made["namespace"], made["name"], made["uid"])
            raise ChangedPodError(made["name"], lost)
        self._note(answer)

    def _note(self, answer: Object) -> None:
        """Let the next round see a pod as this write has left it."""
        if answer:
            self.memory.pods.note(answer)

    def target(self, job: AnyJob, pods: tuple[Pod, ...]) -> Target | None:
        """The coordinator of the current term, also while it is being deleted; None while it has no
        address, or the job no token.
        """
        term = job.status.coordinator_term
        runs = ("Running", "Unknown")
        leading = (
            p for p in pods if p.role == names.COORDINATOR and p.term == term and p.phase in runs
        )
        pod = next((p for p in leading if p.ip), None)
        if pod is None or self.key_problem(job):
            return None
        token = self._keys.token(job)
        return Target(pod.uid, pod.ip, term, token, workload.protocol_of(job))

    def key_problem(self, job: AnyJob) -> str:
        """Why the job's token cannot be derived; empty when it can, or none is needed."""
        return self._keys.problem(job) if self.token_key(job) else ""

    async def _ensure_access(self, job: AnyJob, observed: Observed) -> None:
        await self._ensure_token(job)
        if isinstance(job, Job):
            await self._ensure_policy(job, observed)

    async def _ensure_policy(self, job: Job, observed: Observed) -> None:
        policy = workload.network_policy(job, self._settings)
        present = observed.own.get(policy["kind"])
        if job.spec.network_policy == "Isolated":
            request = (
                self._cluster.change_network_policy(policy, present)
                if present
                else self._cluster.create_network_policy(policy)
            )
            await self.memory.policies.write(_key(policy), request)
        elif present:
            name = policy["metadata"]["name"]
            self.memory.policies.outdate(_key(policy))
            await self._cluster.delete_network_policy(job.namespace, name, present)

    async def _ensure_budget(self, fewest: int, job: AnyJob, observed: Observed) -> None:
        budget = workload.disruption_budget(job, fewest)
        present = observed.own.get(budget["kind"])
        request = (
            self._cluster.change_disruption_budget(budget, present)
            if present
            else self._cluster.create_disruption_budget(budget)
        )
        await self.memory.budgets.write(_key(budget), request)

    async def _ensure_token(self, job: AnyJob) -> None:
        if LAUNCHER_OBJECTS[job.launcher].has_token:
            await self._cluster.create_secret(workload.secret(job, self._keys.token(job)))
            self._tokens_sent[job.key] = time.monotonic()

    async def _repair_token(self, job: AnyJob) -> None:
        """Make the Secret again, in case that somebody has deleted it.

        Most likely it exists. A full quota refuses the request all the same, which must not keep
        the job from replacing a worker.
        """
        try:
            await self._ensure_token(job)
        except ClusterError as error:
            log.warning("%s/%s: the Secret is not sent again: %s", job.namespace, job.name, error)

    async def _ensure_service(self, term: int, job: AnyJob, observed: Observed) -> Object:
        """A new Service asks for the address that workers know; where that is taken, for any. One
        that has none any more makes room: a headless Service can be given no address.
        """
        wanted = workload.service(job, term, job.status.service_address)
        key, services = _key(wanted), self.memory.services
        present = observed.own.get(wanted["kind"])
        if present and observed.service is not None:
            return await services.write(key, self._cluster.change_service(wanted, present))
        if present:
            services.outdate(key)
            await self._cluster.delete_service(*key, present)
        try:
            return await services.write(key, self._cluster.create_service(wanted))
        except ClusterError as error:
            if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            known = job.status.service_address
            log.warning("%s/%s: cannot have %s again: %s", *job.key, known, error.message)
            anywhere = workload.service(job, term)
            return await services.write(key, self._cluster.create_service(anywhere))

    async def _send_address(self, pods: tuple[Pod, ...], job: AnyJob, observed: Observed) -> None:
        url = workload.coordinator_url(observed.service.address if observed.service else "")
        token = self._keys.token(job)
        places = asyncio.Semaphore(AGENTS_AT_ONCE)

        async def problem_of(pod: Pod) -> str:
            async with places:
                return await self._problem_of(pod, token, url)

        problems = await asyncio.gather(*map(problem_of, pods))
        former, now = self._unreached.get(job.key, {}), time.monotonic()
        failed = {pod.uid: why for pod, why in zip(pods, problems, strict=True) if why}
        self._unreached[job.key] = {uid: former.get(uid, now) for uid in failed}
        if failed:
            first = next(iter(failed.values()))
            why = f"to {len(failed)} of {len(pods)} agents; of the first: {first}"
            log.warning("%s/%s: cannot send the coordinator's address %s", *job.key, why)

    async def _problem_of(self, pod: Pod, token: str, url: str) -> str:
        """Why an agent did not take the coordinator's address; empty when it did."""
        try:
            await self._coordinators.send_address(pod.ip, token, url)
        except CoordinatorError as error:
            return str(error)
        return ""

    def _rendered(self, action: Making, job: Job, observed: Observed) -> Object:
        """The object that an action makes."""
        match action:
            case CreateClaim():
                return workload.claim(job)
            case CreateCoordinator(term, excluded):
                wanted = self._desired(job, observed)
                return workload.coordinator_pod(job, self._settings, wanted, term, excluded)
            case CreateStore(term, excluded):
                return torchrun_workload.store_pod(job, self._settings, term, excluded)
            case CreateWorker(index, incarnation, excluded):
                address = observed.service.address if observed.service else ""
                return self._worker((index, incarnation), job, address, tuple(excluded))

    def _worker(
        self, place: tuple[int, int], job: Job, address: str, excluded: tuple[str, ...]
    ) -> Object:
        """A worker. Those of a round differ in their place alone, so one of them is rendered."""
        of = job, address, excluded
        known = self._workers.pop(job.key, None)
        if known is None or known[0] != of:
            rendered = _WORKER_PODS[job.launcher](job, self._settings, place, address, excluded)
            known = of, rendered
        self._workers[job.key] = known
        if len(self._workers) > MOST_RENDERED:
            del self._workers[next(iter(self._workers))]
        return at_place(known[1], job.name, place)

    async def _put_desired(self, job: Job, observed: Observed) -> None:
        target = self.target(job, observed.pods)
        if target is not None:
            await self._coordinators.put_desired(target, self._desired(job, observed))

    async def _post_lost(self, lost: Lost, job: AnyJob, observed: Observed) -> None:
        target = self.target(job, observed.pods)
        if target is not None:
            await self._coordinators.post_lost(target, lost)

    def _desired(self, job: Job, observed: Observed) -> Desired:
        report = observed.coordinator.status
        wanted = workload.desired(job, merge_ledgers(job.status, report))
        return wanted.model_copy(update={"failed_starts": report and report.failed_starts})


Making = CreateClaim | CreateCoordinator | CreateStore | CreateWorker
"""Actions that make an object of what the spec says."""


def makes_of_spec(actions: Iterable[Action]) -> bool:
    """Whether one of these does: then the plan rests on the claim as it is now."""
    return any(isinstance(action, Making) for action in actions)


ASKING = (PutDesired, PostLost, SendAddress)
"""Actions that ask pods of the job. One that is frozen costs the time-out of a request."""


def beside_each_other(
    actions: Sequence[Action],
) -> tuple[Sequence[Action], Sequence[Action], Sequence[Action]]:
    """What is executed before the first action that asks a pod; what follows in its order, such as
    the end of a pod that the coordinator is no longer to want; and what is made meanwhile, which
    needs no answer of a pod.
    """
    first = tuple(itertools.takewhile(lambda action: not isinstance(action, ASKING), actions))
    rest = actions[len(first) :]
    made = tuple(action for action in rest if isinstance(action, Making))
    return first, tuple(action for action in rest if not isinstance(action, Making)), made


def in_batches(actions: Iterable[Action]) -> Iterator[tuple[Action, ...]]:
    """The actions in their order; of those that follow each other and do not need each other
    FIRST_AT_ONCE at a time, then twice as many, up to MOST_AT_ONCE.

    A quota that takes no more pods is met by one batch. The source is slowStartBatch of Kubernetes'
    Job controller.
    """
    for _, group in itertools.groupby(actions, _independent):
        size = FIRST_AT_ONCE
        while batch := tuple(itertools.islice(group, size)):
            yield batch
            size = min(2 * size, MOST_AT_ONCE)


def _independent(action: Action) -> object:
    """Equal for actions that do not need each other."""
    kinds = (NEEDED_BY_PODS, PODS, {DeletePod})
    return next((kind for kind in kinds if type(action) in kind), action)


_WORKER_PODS = {"regroup": workload.worker_pod, "torchrun": torchrun_workload.agent_pod}


def _key(document: Object) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]


def _valid(job: AnyJob) -> Job:
    if not isinstance(job, Job):
        raise TypeError(f"{job.namespace}/{job.name}: the plan rests on a spec that is invalid")
    return job


def _lost_marks(wanted: Object, made: Object) -> str:
    """Which of the labels and owners that we gave a pod it does not have; empty when it has all."""
    labels = made.get("labels") or {}
    lost = [name for name, value in wanted["labels"].items() if labels.get(name) != value]
    owners = {
        owner["uid"] for owner in made.get("ownerReferences") or () if owner.get("controller")
    }
    if any(owner["uid"] not in owners for owner in wanted["ownerReferences"]):
        lost.append("ownerReferences")
    return listed(lost)


def _short(action: Action) -> str:
    """For the log: what a coordinator or a spec names there may be thousands."""
    match action:
        case DeletePod(pod):
            return f"delete pod {pod.name}{' by force' if action.force else ''}: {action.why}"
        case SendAddress(pods):
            names = named((pod.name for pod in pods), len(pods))
            return f"send the coordinator's address to {names}"
        case PostLost(members, reason):
            return f"report as lost {named(map(shorten, members), len(members))}: {shorten(reason)}"
    return str(action)[:LINE_LIMIT]
