"""One reconcile, as a story: read the job, observe, plan, write the status, follow the coordinator,
execute, emit events.

The status is written before the actions, and only over an object that reads as it did. What the
plan must remember is durable before any action rests on it, and two operators cannot act on the
same state.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial

from regroup_operator.api import names
from regroup_operator.api.resource import MANAGED_BY, PLURAL, Key, Object
from regroup_operator.api.settings import Settings
from regroup_operator.api.status import IMAGE_LIMIT
from regroup_operator.api.worker_bounds import most_to_report
from regroup_operator.controller.agent_survey import agents_to_ask
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.executor import (
    Executor,
    beside_each_other,
    in_batches,
    makes_of_spec,
)
from regroup_operator.controller.followed_coordinator import Target
from regroup_operator.controller.internal_error import (
    describe,
    event_of,
    event_of_refusal,
    event_of_unread,
    status_with_error,
    unread,
)
from regroup_operator.controller.job_events import EventWriter, remembered_events
from regroup_operator.controller.node_watch import NodeWatch, pointed_to
from regroup_operator.controller.operator_metrics import JobSeries, count_internal_error
from regroup_operator.controller.operator_traces import Round
from regroup_operator.controller.progress_schedule import ProgressSchedule
from regroup_operator.controller.refusals import LEADERS, Kind, Refusals, made_nothing, stopped_by
from regroup_operator.decide.job_projection import THROTTLED, differs, is_steady
from regroup_operator.decide.outcome import written_outcome
from regroup_operator.decide.plan import Action, Event, Plan
from regroup_operator.decide.planner import plan
from regroup_operator.decide.succession import waits_for_volumes
from regroup_operator.errors import (
    ClusterError,
    ConflictError,
    CoordinatorError,
    OperatorError,
    UnreadableError,
    UnreadableObjectError,
)
from regroup_operator.informer.first_sight import FirstSight
from regroup_operator.informer.job_pods import own_pods
from regroup_operator.informer.late_pod_events import LatePod, LatePodEvents
from regroup_operator.informer.parsed_jobs import ParsedJobs
from regroup_operator.informer.pod_lists import read_for
from regroup_operator.informer.recent_answers import RecentAnswers
from regroup_operator.informer.request_metrics import count_unreadable
from regroup_operator.observe.kubernetes_objects import read_claim, read_identity, read_job
from regroup_operator.observe.observed import (
    AnyJob,
    Identity,
    Job,
    JobObject,
    Observed,
    Pod,
)
from regroup_operator.observe.ownership import name_conflict, own
from regroup_operator.render import workload
from regroup_operator.render.pod_check import find_problem, invalid
from regroup_operator.render.pods import LAUNCHER_OBJECTS, claim_name, user_image
from regroup_trainer.protocol.waiting_reasons import WaitingReason
from regroup_trainer.system.log_lines import NO_SUBJECT, Subject

UNASKED_SECONDS = 5.0
"""How long a job that may train waits for the first answer of its coordinator, or for its absence,
after the operator's start. Until then nothing is known of it.
"""
STEADY_SECONDS = 30.0
"""The longest pause between two rounds of a job that has not ended: what is changed of its Service,
policy or budget is seen then.
"""
TRAINING_SECONDS = 40.0
"""The same of a job that trains. It is longer than the pause between two writes of its progress, so
that one round does both.
"""
STEADY_ROUNDS_A_SECOND = 4.0
"""Of all jobs that train, where nothing happens to them: the pause grows with more than 160. That
between writes of progress does, too, and stays the shorter one.
"""
CONFLICT_SECONDS = 0.1
"""Pause after a job has changed while it was looked at, which somebody may make it do in a loop."""
MOST_WRITES = 5
"""Of one status, over versions of the job that differ in nothing that a plan rests on: somebody may
change an annotation all the time. Each of them takes a moment, and a whole round takes longer.
"""
UNREADABLE_SECONDS = 300.0
"""Before a job that cannot be read is read again."""
_UNREADABLE = "the operator skips this job, its pods stay as they are: {} (make it smaller)"

log = logging.getLogger(__name__)
round_subject: ContextVar[Subject] = ContextVar("round_subject", default=NO_SUBJECT)
"""What the round is about in which a line is logged."""


@dataclass
class _Executed:
    """What has become of the actions of a round."""

    done: list[Action] = field(default_factory=list)
    refused: dict[Kind, Exception] = field(default_factory=dict)
    stopped: set[Kind] = field(default_factory=set)
    """Kinds that are not tried any more."""


class Reconciler:
    """Brings one job at a time closer to what it should be."""

    def __init__(
        self,
        cluster: Cluster,
        coordinators: Coordinators,
        executor: Executor,
        nodes: NodeWatch,
        settings: Settings,
        series: JobSeries,
    ) -> None:
        self._cluster = cluster
        self._coordinators = coordinators
        self._nodes = nodes
        self._settings = settings
        self._series = series
        self._executor = executor
        self._memory = executor.memory
        self._refusals: dict[Key, Refusals] = {}
        """Jobs with actions that were refused."""
        self._doubtful: set[Key] = set()
        """Jobs with a request whose outcome is not known for sure: memory may lack a pod."""
        self._unconfirmed: set[Key] = set()
        """Jobs of which memory may lack pods that a former leader has made."""
        self._progress = ProgressSchedule()
        self._refused_once: set[Key] = set()
        """Jobs whose last write of the status was refused, since they had changed."""
        self._hindrances: dict[Key, str | None] = {}
        """What the message of each job says beside its progress, as this process wrote it."""
        self._looked_at: dict[Key, str] = {}
        """Jobs that this process has begun a round for -> UID."""
        self._asking: set[Key] = set()
        """Those whose last round waits for the first answer of their coordinator."""
        self._planned: set[Key] = set()
        """Jobs that this process has planned for."""
        self._training: set[Key] = set()
        """Those that trained in their last round."""
        self._up_to_date: set[Key] = set()
        """Jobs of which this process has emitted all events that their status remembers."""
        self._events = EventWriter(cluster)
        self._problems: dict[Key, tuple[tuple[str, int, str], str]] = {}
        """UID, generation and Python of a job, and what is wrong with the pods that follow."""
        self._jobs = ParsedJobs()
        self._unmade_terms: dict[Key, int] = {}
        """Terms that this process has written and whose pod was refused. Nobody else uses them."""
        self._claims = RecentAnswers(cluster.claim)
        self._late_pods = LatePodEvents(cluster.pod_events)
        self._first_sight = FirstSight()

    async def reconcile(
        self, key: Key, on_asking: Callable[[], None] = lambda: None
    ) -> float | None:
        """One round. Returns the seconds until the next one; None: when something happens. Raises
        ClusterError. An unexpected error is shown in the status, and raised. `on_asking` is called
        once all that is left waits for pods of the job, which may let it wait on purpose.
        """
        round_subject.set(Subject(*key))
        self._asking.discard(key)
        try:
            document = await self._memory.jobs.get(key)
        except UnreadableError as error:
            await self._skip(key, error)
            return UNREADABLE_SECONDS
        if document is None or document.get("spec", {}).get("managedBy", MANAGED_BY) != MANAGED_BY:
            self._forget(key)
            return None
        try:
            return await self._round(key, document, on_asking)
        except UnreadableObjectError as error:
            await self._stand_still(document, self._read(key, document), error)
            return STEADY_SECONDS
        except OperatorError:
            raise
        except Exception as error:
            await self._report(key, document, error)
            raise

    async def _round(
        self, key: Key, document: Object, on_asking: Callable[[], None]
    ) -> float | None:
        job = self._read(key, document)
        round_subject.set(Subject(*key, job.status.rendezvous_generation or ""))
        for path in job.unreadable_status:
            log.error("%s/%s: cannot read status.%s: a default is used", *key, path)
        if self._looked_at.get(key, job.uid) != job.uid:
            self._forget(key)  # what is remembered is of a former job of this name
        known = self._known_pods(job)
        pods = await self._listed_pods(job) if known is None else known
        is_first = job.key not in self._planned
        if is_first and self._has_yet_to_ask(job, pods):
            return UNASKED_SECONDS
        observed, decided = await self._plan(job, pods)
        if _trains(job) and makes_of_spec(decided.actions):
            observed, decided = await self._plan(job, pods, recent=False)
        if known is not None and self._needs_list(job, pods, decided):
            pods = await self._listed_pods(job)
            if is_first and self._has_yet_to_ask(job, pods):  # memory may have lacked its pod
                return UNASKED_SECONDS
            if pods != known:
                observed, decided = await self._plan(job, pods, recent=False)
        if makes_of_spec(decided.actions):
            checked = self._checked(job)
            if checked is not job:
                job = checked
                observed, decided = await self._plan(job, pods, recent=False)
        # What cannot be rendered must not use up a term or an incarnation.
        self._executor.rehearse(decided.actions, replace(job, status=decided.status), observed)
        self._executor.note_plan(key, decided.actions)
        written = await self._write_status(document, job, decided)
        if written is None:
            return CONFLICT_SECONDS
        self._planned.add(job.key)
        if decided.events:
            self._up_to_date.discard(key)  # until they are emitted, whatever ends this round
        self._follow(written, observed, decided)
        await self._execute(written, observed, decided, on_asking)
        has_another = decided.requeue_after is not None and not job.deleting
        waits = is_first and has_another and job.key in self._training
        await self._emit(written, observed, decided, waits=waits)
        return self._requeue_after(job, decided)

    async def _report(self, key: Key, document: Object, error: Exception) -> None:
        """Show an unexpected error in the status, and in one event: that may be possible where a
        status is refused. What is written does not rest on the status that is stored, which may be
        the reason.
        """
        count_internal_error()
        self._series.fail(key)
        metadata, raw, message = document["metadata"], document.get("status"), describe(error)
        generation = metadata.get("generation", 0)
        status = status_with_error(raw, generation, message, _now())
        try:
            if status != raw:
                await self._change_status(document, status)
        except ClusterError as refused:
            log.warning("%s/%s: cannot report an error: %s", *key, refused)
        await self._events.emit(key, metadata["uid"], event_of(error, message, generation))

    async def _skip(self, key: Key, error: UnreadableError) -> None:
        """Name a job that cannot be read, and leave it and its pods as they are."""
        count_unreadable(PLURAL)
        log.error("%s/%s: skipped: %s", *key, error)
        event = Event("Warning", "Unreadable", _UNREADABLE.format(error.message), "unreadable")
        await self._events.emit(key, "", event)

    async def _stand_still(
        self, document: Object, job: AnyJob, error: UnreadableObjectError
    ) -> None:
        """Name an object that cannot be read, and do nothing else for the job: what it has is not
        known. A job that has ended keeps its end.
        """
        log.warning("%s/%s: %s", *job.key, error)
        if job.deleting:
            return
        waiting, raw = unread(error), document.get("status")
        if written_outcome(job.status) is None:
            status = status_with_error(raw, job.generation, waiting.message, _now(), waiting.reason)
            if status != raw:
                await self._write_over(document, job, status)
            self._series.observe(job, job.status, waiting)
        await self._events.emit(job.key, job.uid, event_of_unread(waiting, job.generation))

    def _forget(self, key: Key) -> None:
        self._coordinators.forget(key)
        self._executor.forget(key)
        self._series.forget(key)
        self._nodes.forget(key)
        self._refusals.pop(key, None)
        self._progress.forget(key)
        self._looked_at.pop(key, None)
        doubts = self._doubtful, self._unconfirmed, self._refused_once
        for jobs in (*doubts, self._planned, self._training, self._up_to_date):
            jobs.discard(key)
        self._hindrances.pop(key, None)
        self._problems.pop(key, None)
        self._jobs.forget(key)
        self._unmade_terms.pop(key, None)
        self._memory.taken_pods.forget(key)
        self._memory.worker_ends.forget(key)
        self._events.forget(key)
        self._first_sight.forget(key)

    def awaits_answer(self, key: Key) -> bool:
        """Whether rounds of this job wait for the first answer of its coordinator."""
        return key in self._asking

    def _has_yet_to_ask(self, job: AnyJob, pods: tuple[Pod, ...]) -> bool:
        """Whether this operator has just started, and has had no answer from the coordinator of a
        job that has trained. What it could write before would be false: that nothing trains. The
        answer, or its absence, is news.
        """
        if job.deleting:
            return False
        has_trained = job.status.rendezvous_generation and not job.status.completion_time
        target = self._executor.target(job, pods) if has_trained else None
        if target is not None and not self._coordinators.has_asked(job.key, target):
            self._follow_target(job, Observed(pods=pods), target)
            self._asking.add(job.key)
            return True
        return False

    def _read(self, key: Key, document: Object) -> AnyJob:
        """The job. In the state in which it was read last it is not read again: that takes a third
        of a round in which nothing has changed.
        """
        identity = read_identity(document)
        job = self._jobs.get(key, identity)
        if job is None:
            job = read_job(document, _now(), self._settings.max_workers)
            job = job if _trains(job) else self._checked(job)
            self._jobs.note(identity, job, document)
        return job

    def _checked(self, job: AnyJob) -> AnyJob:
        """The job, or why no pod can be made of it. A spec is rendered for this once: before a job
        starts, and of one that trains before it gets another pod. A new leader has a thousand.
        """
        if not isinstance(job, Job):
            return job
        known, identity = self._problems.get(job.key), (job.uid, job.generation, job.python)
        if known is None or known[0] != identity:
            known = (identity, find_problem(job, self._settings))
            self._problems[job.key] = known
        return invalid(job, known[1]) if known[1] else job

    # --- observe ----------------------------------------------------------------------------------

    async def _plan(
        self, job: AnyJob, pods: tuple[Pod, ...], *, recent: bool = True
    ) -> tuple[Observed, Plan]:
        """What is observed of a job with these pods, and what is decided by that."""
        observed = await self._observe(job, pods, recent=recent)
        return observed, plan(job, observed, _now())

    async def _observe(self, job: AnyJob, pods: tuple[Pod, ...], *, recent: bool) -> Observed:
        """`recent`: the claim of a job that trains may be as it was a moment ago."""
        running = [
            p.uid for p in pods if p.role == names.WORKER and p.alive and p.phase == "Running"
        ]
        view = self._coordinators.view(job.key, job.status.coordinator_term, running)
        *named, claim = await self._named_objects(job, recent=recent)
        service, budget, policy = (own(document, job) for document in named)
        refusals = self._refusals.get(job.key, Refusals())
        reason, error = self._problem(job, refusals)
        nodes = {pod.node for pod in pods if pod.node}
        self._nodes.expect(job.key, nodes)
        late_pods = await self._events_of_late_pod(job, pods)
        held = refusals.held(_scene(job, pods), time.monotonic())
        taken = await self._memory.taken_pods.find(job)
        pods = (*pods, *taken.relabelled)
        identities = {d["kind"]: read_identity(d) for d in (service, budget, policy) if d}
        return Observed(
            pods=pods,
            seen_seconds=self._first_sight.look(job.key, _to_be_timed(pods, identities)),
            disowned=tuple(taken.disowned),
            taken_lately=self._memory.taken_pods.found_lately(job.key),
            service=workload.service_of(job, service) if service else None,
            network_policy=self._has_its_policy(job, policy),
            unreached_seconds=self._executor.unreached_seconds(job.key),
            token_sent_seconds=self._executor.token_sent_seconds(job.key),
            disruption_budget=workload.protected_workers(job, budget) if budget else None,
            claim=read_claim(claim) if claim else None,
            own=identities,
            conflict=name_conflict(job, named, claim),
            nodes=await self._nodes.look(
                job.key,
                pointed_to(pods, view.failures > 0, set(view.lost_seconds)),
                job.status.suspected_nodes,
            ),
            unknown_nodes=self._nodes.unknown(nodes),
            coordinator=view,
            mount_failures={uid: late.mount_failure for uid, late in late_pods.items()},
            pulls={uid: late.pull for uid, late in late_pods.items()},
            images=self._images(job),
            token_key=self._executor.token_key(job),
            apply_error=error,
            apply_reason=reason,
            held_back=frozenset(kind.__name__ for kind in held),
            unmade_term=self._unmade_terms.get(job.key),
        )

    def _problem(self, job: AnyJob, refusals: Refusals) -> tuple[WaitingReason, str]:
        """What keeps plans of this job from being executed; an empty sentence when nothing does."""
        if missing := self._executor.key_problem(job):
            return WaitingReason.KeyMissing, missing
        return refusals.explain()

    def _known_pods(self, job: JobObject) -> tuple[Pod, ...] | None:
        """The job's pods from memory; None where that does not suffice: after a request that
        failed, which may have been carried out all the same.
        """
        if job.key not in self._looked_at:
            self._looked_at[job.key] = job.uid
            if job.status.observed_generation:
                self._unconfirmed.add(job.key)
        if self._memory.pods.has_all_of(job.key):
            self._unconfirmed.discard(job.key)
        return None if job.key in self._doubtful else self._memory.pods.of(job)

    def _needs_list(self, job: AnyJob, pods: tuple[Pod, ...], decided: Plan) -> bool:
        """Whether a plan must not rest on the pods that memory has of a job."""
        if job.key in self._unconfirmed and not is_steady(job.status, decided):
            return True
        return decided.needs_fresh_pods(job.status, self._memory.worker_ends.of(job, pods))

    async def _listed_pods(self, job: JobObject) -> tuple[Pod, ...]:
        """The job's pods by a consistent list."""
        label, read = names.selector(job.name), read_for(job.uid, self._memory.pods.read)
        listed, version = await self._cluster.pods(job.namespace, label, read)
        self._memory.pods.note_list(job.key, listed, version)
        self._doubtful.discard(job.key)
        self._unconfirmed.discard(job.key)
        return own_pods(job, [seen.value for seen in listed])

    async def _events_of_late_pod(
        self, job: JobObject, pods: tuple[Pod, ...]
    ) -> dict[str, LatePod]:
        """By its UID, what events say of the pod that waits the longest for its containers. An
        installation may lack the right to list them: the log says so, and its jobs do without.
        """
        found: dict[str, LatePod] = {}
        for pod in waits_for_volumes(pods, _now())[:1]:
            try:
                found[pod.uid] = await self._late_pods.get(job.namespace, pod.uid)
            except ClusterError as error:
                log.warning("%s/%s: cannot read events of %s: %s", *job.key, pod.name, error)
        return found

    async def _named_objects(self, job: AnyJob, *, recent: bool) -> tuple[Object | None, ...]:
        """What has the names of the job's Service, budget, network policy and claim, in this order.
        It may be somebody else's.
        """
        role = LAUNCHER_OBJECTS[job.launcher].leading_role
        service, budget = names.service(job.name, role), names.disruption_budget(job.name)
        policy, claim = names.network_policy(job.name), claim_name(job)
        services, budgets = self._memory.services, self._memory.budgets
        return await asyncio.gather(
            _reading("Service", service, lambda: services.get((job.namespace, service))),
            _reading("PodDisruptionBudget", budget, lambda: budgets.get((job.namespace, budget))),
            _reading("NetworkPolicy", policy, lambda: self._network_policy(job)),
            _reading("PersistentVolumeClaim", claim or "", lambda: self._claim(job, recent=recent)),
        )

    async def _claim(self, job: AnyJob, *, recent: bool) -> Object | None:
        """The claim that the spec names or describes."""
        name = claim_name(job)
        if name is None:
            return None
        return await self._claims.get((job.namespace, name), recent=recent and _trains(job))

    def _has_its_policy(self, job: AnyJob, policy: Object | None) -> bool:
        """Whether the job's policy is as it is to be. Another one lets in former peers of the
        chart's, was edited, or is no longer wanted.
        """
        if not isinstance(job, Job):
            return True
        if job.spec.network_policy == "None":
            return policy is None
        wanted = workload.network_policy(job, self._settings)
        return policy is not None and policy["spec"] == wanted["spec"]

    async def _network_policy(self, job: AnyJob) -> Object | None:
        """The object with the name of the job's policy. A job that wants none has no conflict with
        that of somebody else.
        """
        if not isinstance(job, Job):
            return None
        found = await self._memory.policies.get((job.namespace, names.network_policy(job.name)))
        return found if job.spec.network_policy == "Isolated" else own(found, job)

    def _images(self, job: AnyJob) -> dict[str, str]:
        """What would run if the job started now; nothing while the spec is invalid."""
        if not isinstance(job, Job):
            return {}
        trainer = user_image(job.spec) or self._settings.trainer_image
        images = {"trainer": trainer, "coordinator": self._settings.coordinator_image}
        return {name: image for name, image in images.items() if len(image) <= IMAGE_LIMIT}

    # --- status -----------------------------------------------------------------------------------

    async def _write_status(self, document: Object, job: AnyJob, decided: Plan) -> AnyJob | None:
        """Write what changed. Returns the job with the new status; None when the object has changed
        meanwhile. Raises ConflictError when it has again and again.
        """
        if self._is_due(job, decided):
            status = decided.status.model_dump(by_alias=True, mode="json", exclude_none=True)
            try:
                await self._write_over(document, job, status)
            except ConflictError:
                if job.key in self._refused_once:
                    raise  # the queue's back-off follows: somebody may change the job all the time
                self._refused_once.add(job.key)
                return None
            except ClusterError as error:
                if event := event_of_refusal(error, document, _now()):
                    await self._events.emit(job.key, job.uid, event)
                raise
            self._progress.written(job.key)
        self._refused_once.discard(job.key)
        self._hindrances[job.key] = decided.hindrance
        if decided.status.phase == "Running":
            self._training.add(job.key)
        else:
            self._training.discard(job.key)
        self._series.observe(job, decided.status, decided.waiting)
        return replace(job, status=decided.status)

    async def _write_over(self, document: Object, job: AnyJob, status: Object) -> None:
        """Write a status over the object that was read as `job`, or over a newer version that reads
        the same. Raises as the request does.
        """
        for left in reversed(range(MOST_WRITES)):
            try:
                await self._change_status(document, status)
            except ConflictError:
                newer = await self._memory.jobs.get(job.key)
                if newer is None or read_identity(newer) == read_identity(document):
                    raise
                if not left or self._read(job.key, newer) != job:
                    raise
                document = newer
            else:
                return

    async def _change_status(self, document: Object, status: Object) -> None:
        """Write a status over the object that was read. Raises as the request does."""
        metadata = document["metadata"]
        key = metadata["namespace"], metadata["name"]
        request = self._cluster.change_status(*key, status, read_identity(document))
        await self._memory.jobs.write(key, request)

    def _is_due(self, job: AnyJob, decided: Plan) -> bool:
        if job.unreadable_status or differs(job.status, decided.status, ignoring=THROTTLED):
            return True
        if self._hindrances.get(job.key, decided.hindrance) != decided.hindrance:
            return differs(job.status, decided.status)
        if self._progress.seconds_left(job.key) or not differs(job.status, decided.status):
            return False
        return self._progress.begin(job.key)

    # --- execute ----------------------------------------------------------------------------------

    async def _execute(
        self, job: AnyJob, observed: Observed, decided: Plan, on_asking: Callable[[], None]
    ) -> None:
        """Execute the actions in order, in batches; what asks the job's own pods beside what is
        made: one that is frozen must hold no replacement back. A refusal ends the actions of its
        own kind, and those that need it. The status of the next round shows it.
        """
        began, so_far = time.time(), _Executed()
        leader = next((a for a in decided.actions if isinstance(a, LEADERS)), None)
        if leader is not None:
            self._unmade_terms.pop(job.key, None)
        first, asking, made = beside_each_other(decided.actions)
        latest = await self._execute_in_order(first, job, observed, so_far)

        async def make() -> None:
            await self._execute_in_order(made, job, latest, so_far)
            if asking:
                on_asking()

        ask = self._execute_in_order(asking, job, latest, so_far)
        ends = await asyncio.gather(ask, make(), return_exceptions=True)
        if error := next((end for end in ends if isinstance(end, BaseException)), None):
            raise error
        refused, done = so_far.refused, tuple(so_far.done)
        if self._executor.traces is not None:
            self._executor.traces.note(Round(job, observed, done, began, time.time()))
        if leader is not None and leader not in done and made_nothing(leader, refused):
            self._unmade_terms[job.key] = leader.term
        planned = {type(action) for action in decided.actions}
        refusals = self._refusals.setdefault(job.key, Refusals())
        scene = _scene(job, observed.pods)
        refusals.note_round(planned, refused, observed.held_back, scene, time.monotonic())

    async def _execute_in_order(
        self, actions: Sequence[Action], job: AnyJob, observed: Observed, so_far: _Executed
    ) -> Observed:
        """Execute a part of a round's actions. Returns what is observed after them."""
        for batch in in_batches(actions):
            going_on = tuple(action for action in batch if type(action) not in so_far.stopped)
            observed, failed = await self._executor.execute_all(going_on, job, observed)
            failures = [action for action, _ in failed]
            so_far.done += [action for action in going_on if action not in failures]
            for action, error in failed:
                log.warning("%s/%s: %s", job.namespace, job.name, error)
                so_far.stopped |= stopped_by(type(action))
                if not isinstance(error, CoordinatorError):
                    self._doubtful.add(job.key)
                    so_far.refused.setdefault(type(action), error)
        return observed

    def _requeue_after(self, job: AnyJob, decided: Plan) -> float | None:
        """A refused action is tried again after its pause, also where the plan wants to go on at
        once. So is a refused event. Progress is written when it is due.
        """
        pause = decided.requeue_after
        event_due = self._events.due(job.key)
        if event_due is not None:
            pause = event_due if pause is None else min(pause, event_due)
        due = self._refusals[job.key].due(time.monotonic())
        if due is not None:
            pause = min(due, pause or due)
        if pause and decided.status.completion_time is None:
            pause = min(pause, self._longest_pause(job.key))
        if pause and decided.follow:
            pause = min(pause, self._progress.seconds_left(job.key) or pause)
        return pause

    def _longest_pause(self, key: Key) -> float:
        if key not in self._training:
            return STEADY_SECONDS
        return max(TRAINING_SECONDS, len(self._training) / STEADY_ROUNDS_A_SECOND)

    # --- follow and emit --------------------------------------------------------------------------

    def _follow(self, job: AnyJob, observed: Observed, decided: Plan) -> None:
        target = self._executor.target(job, observed.pods) if decided.follow else None
        self._follow_target(job, observed, target)

    def _follow_target(self, job: AnyJob, observed: Observed, target: Target | None) -> None:
        asked = job.size.max_replicas + job.size.spares
        workers = most_to_report(asked, len(observed.pods), self._settings.max_workers)
        known = job.status.coordinator_events
        emitted = known.sequence if target is not None and known.term == target.term else 0
        agents = agents_to_ask(job, observed)
        self._coordinators.follow(job.key, target, agents, workers, emitted)

    async def _emit(self, job: AnyJob, observed: Observed, decided: Plan, *, waits: bool) -> None:
        """Emit what is new; in the first round, and after one that failed, also what the status
        remembers. `waits`: not that yet. A new leader has a first round of a thousand jobs that
        train, and most of these events exist.
        """
        is_up_to_date = job.key in self._up_to_date
        self._up_to_date.discard(job.key)
        emitted = [await self._events.emit(job.key, job.uid, event) for event in decided.events]
        note = partial(self._coordinators.note_emitted, job.key, job.status.coordinator_term)
        reported = self._events.emit_reported(job.key, job.uid, observed.coordinator, note)
        emitted.append(await reported)
        remembered = [] if is_up_to_date or waits else remembered_events(job.status, _now())
        named = self._events.emit_named
        emitted += [await named(job.key, job.uid, name, event) for name, event in remembered]
        if all(emitted) and not waits:
            self._up_to_date.add(job.key)


async def _reading(
    kind: str, name: str, read: Callable[[], Awaitable[Object | None]]
) -> Object | None:
    """What is read of an object. Raises UnreadableObjectError, which names it."""
    try:
        return await read()
    except UnreadableError as error:
        raise UnreadableObjectError.named(kind, name, error.message) from error


def _trains(job: AnyJob) -> bool:
    """Whether the job trained when its status was written, with the spec that it has."""
    return job.status.phase == "Running" and job.status.observed_generation == job.generation


def _scene(job: AnyJob, pods: Sequence[Pod]) -> tuple[int, frozenset[str]]:
    """What makes a refused action worth another try when it changes."""
    return job.generation, frozenset(pod.uid for pod in pods)


def _to_be_timed(pods: Sequence[Pod], own: Mapping[str, Identity]) -> list[str]:
    """UIDs of what it matters of for how long it is so: ended pods, and the Service."""
    ended = [pod.uid for pod in pods if pod.phase in ("Failed", "Succeeded")]
    return [*ended, own["Service"].uid] if "Service" in own else ended


def _now() -> datetime:
    return datetime.now(UTC)
