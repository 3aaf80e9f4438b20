"""Decides what to do about a job: `plan(job, observed, now) -> Plan`. Pure; reads as the operator's
policy.

What cannot be derived again (terms, incarnations, ends that are counted, suspects) goes into the
status of the plan, which is written before the plan's actions. A crash between any two steps
therefore counts each failure exactly once, and no name is used twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from regroup_operator.api import names
from regroup_operator.api.status import EVENTS_KEPT, IMAGE_LIMIT, EventStatus, TrainingJobStatus
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.coordinator_evidence import explain_no_answer, outage_due
from regroup_operator.decide.job_projection import project
from regroup_operator.decide.launchers import launcher_of
from regroup_operator.decide.losses import remove_lost
from regroup_operator.decide.outcome import (
    after_the_end,
    deadline_due,
    end,
    find_outcome,
    with_image_error,
    written_outcome,
)
from regroup_operator.decide.plan import (
    MESSAGE_LIMIT,
    REQUEUE_SECONDS,
    Action,
    CreateClaim,
    CreateCoordinator,
    CreateStore,
    CreateWorker,
    DeletePod,
    DraftPlan,
    EnsureService,
    Event,
    Plan,
    PlanContext,
    Step,
)
from regroup_operator.decide.staffing import backoff_left, creates_more, keep_budget
from regroup_operator.decide.straggler_replacement import replace_straggler
from regroup_operator.decide.succession import (
    current_coordinator,
    report_lost,
    send_token,
    token_due,
    uncreated,
    update_coordinator,
)
from regroup_operator.decide.suspension import suspend, tear_down, was_suspended
from regroup_operator.decide.unresponsive_workers import (
    name_unresponsive,
    replace_unresponsive,
    send_address,
    stranded,
    unresponsive_due,
)
from regroup_operator.decide.waiting import (
    JobView,
    find_hindrance,
    find_waiting,
    waiting_events,
)
from regroup_operator.observe.observed import AnyJob, InvalidJob, Job, Observed, Pod, Service
from regroup_operator.render.exact_image import with_digest
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from regroup_trainer.protocol.waiting_reasons import WaitingReason

STEADY_SECONDS = 600.0
"""The longest pause when nothing is suspected or waited for. Whoever has few jobs may look sooner:
not all that may change is reported.
"""


def plan(job: AnyJob, observed: Observed, now: datetime) -> Plan:
    """What to do about `job` now."""
    if job.deleting:
        return Plan(job.status)
    job = replace(job, status=_with_address(_with_shown_release(job.status, observed), observed))
    draft = _decide(job, observed, now)
    status = project(job, observed, draft.status, draft.context, now)
    view = JobView(job, observed, status, draft.context)
    waiting = find_waiting(view)
    events = (*draft.events, *waiting_events(view, waiting))
    hindrance = find_hindrance(view) if status.phase == "Running" else None
    return Plan(
        status=_with_events(job, status, events, now),
        actions=draft.actions,
        # The last two are planned again as long as they hold.
        events=(*events, *_unreadable_status(job), *_unreadable_pods(observed)),
        requeue_after=draft.requeue_after,
        follow=draft.follow,
        waiting=waiting,
        hindrance=hindrance.reason if hindrance else None,
    )


def _decide(job: AnyJob, observed: Observed, now: datetime) -> DraftPlan:
    if outcome := written_outcome(job.status):
        # The outcome stands, whatever was refused before it.
        return after_the_end(job, observed, outcome, now)
    if outcome := find_outcome(job, observed, now):
        return end(job, outcome)
    if job.suspend:
        return suspend(job, observed, _leader_blocker(_blocker(job, observed), observed), now)
    if was_suspended(observed):
        return tear_down(job, observed, now)
    if isinstance(job, InvalidJob):
        return _hold(job, observed, now)
    return _run(job, observed, now)


def _hold(job: InvalidJob, observed: Observed, now: datetime) -> DraftPlan:
    """While the spec is invalid: count losses and keep the job reachable, but make no pod. Without
    pods there is nothing to do before it changes.
    """
    launcher = launcher_of(job)
    losses = remove_lost(job, observed, launcher, now)
    rest = _without(observed, losses.actions)
    leader = launcher.retain_leader(rest, losses.status)
    actions = (*losses.actions, *leader, *report_lost(observed))
    return DraftPlan(
        with_image_error(losses.status, observed, now),
        send_token(observed, actions, now) if launcher.has_coordinator else actions,
        losses.events,
        PlanContext(job.problem),
        requeue_after=_requeue_after(job, rest, losses.status, None, now)
        if observed.pods
        else None,
        follow=launcher.has_coordinator,
    )


def _run(job: Job, observed: Observed, now: datetime) -> DraftPlan:
    """Account for losses, keep the leader, keep the workers, inform the coordinator; in this
    order.
    """
    launcher = launcher_of(job)
    blocker = _blocker(job, observed)
    losses = remove_lost(job, observed, launcher, now)
    rest = _without(observed, losses.actions)
    replaced = replace_unresponsive(job, rest, losses.status, now)
    rest = _without(rest, replaced.actions)
    started = _start(job, replaced.status, observed, blocker, now)
    refused = _leader_blocker(blocker, observed)
    leader = launcher.keep_leader(job, rest, started.status, refused, now)
    slow = replace_straggler(job, rest, leader.status, now)
    rest = _with_planned_service(_without(rest, slow.actions), leader.actions)
    refused = blocker or _held_back(observed, CreateWorker)
    workers = launcher.keep_workers(job, rest, slow.status, refused, now)
    steps = (losses, replaced, started, leader, slow, workers)
    informed = (*update_coordinator(job, observed), *report_lost(observed))
    informed = (*informed, *send_address(rest))
    actions = (
        *(action for step in steps[:4] for action in step.actions),
        *informed,
        *(action for step in steps[4:] for action in step.actions),
        *keep_budget(job, observed, blocker),
    )
    if launcher.has_coordinator:
        actions = send_token(rest, actions, now)
    return DraftPlan(
        with_image_error(workers.status, observed, now),
        actions,
        tuple(event for step in steps for event in step.events),
        PlanContext(blocker, hindrance=_hindrance(rest, workers.status, now)),
        0.0 if creates_more(workers) else _requeue_after(job, rest, workers.status, blocker, now),
        follow=launcher.has_coordinator,
    )


def _leader_blocker(blocker: Waiting | None, observed: Observed) -> Waiting | None:
    """Why no coordinator, or store, may be made now."""
    return blocker or _held_back(observed, CreateCoordinator, CreateStore)


def _held_back(observed: Observed, *kinds: type[Action]) -> Waiting | None:
    """Why pods of these kinds are not made now: one was refused, and the pause is not over."""
    if not any(kind.__name__ in observed.held_back for kind in kinds):
        return None
    return Waiting.of(observed.apply_reason, observed.apply_error)


def _hindrance(observed: Observed, status: TrainingJobStatus, now: datetime) -> Waiting | None:
    """What is wrong with one of the pods, although the job may train."""
    coordinator = current_coordinator(observed, status)
    return (
        uncreated(observed, now)
        or explain_no_answer(coordinator, observed, status)
        or name_unresponsive(observed)
    )


def _without(observed: Observed, actions: Iterable[Action]) -> Observed:
    """What is left once the pods that these actions delete are gone."""
    deleted = {action.pod.uid for action in actions if isinstance(action, DeletePod)}
    return replace(observed, pods=tuple(pod for pod in observed.pods if pod.uid not in deleted))


def _with_planned_service(observed: Observed, actions: Iterable[Action]) -> Observed:
    """With the Service that these actions make, so that workers need not wait for another round."""
    planned = next((a for a in actions if isinstance(a, EnsureService)), None)
    if planned is None or observed.service is not None:
        return observed
    return replace(observed, service=Service(planned.term, address="", is_planned=True))


def _blocker(job: AnyJob, observed: Observed) -> Waiting | None:
    """Why no pod may be made: the spec is invalid, an object of somebody else has the name of one
    of the job's, or a claim is missing or not shared.
    """
    if isinstance(job, InvalidJob):
        return job.problem
    if observed.conflict:
        return Waiting.of(WaitingReason.ObjectConflict, observed.conflict)
    storage = job.spec.checkpoint.storage
    if storage is None or storage.persistent_volume_claim is None:
        return None
    name = storage.persistent_volume_claim.claim_name
    path = "spec.checkpoint.storage.persistentVolumeClaim.claimName"
    if observed.claim is None:
        return Waiting.of(
            WaitingReason.ClaimMissing,
            f"{path}: there is no PersistentVolumeClaim {name!r} in {job.namespace}: create it",
        )
    if observed.claim.deleting:
        return Waiting.of(
            WaitingReason.ClaimMissing,
            f"{path}: PersistentVolumeClaim {name!r} is being deleted: to keep the checkpoints, "
            "set persistentVolumeReclaimPolicy of its volume to Retain; then suspend the job, and "
            "create the claim again when it is gone",
        )
    if job.spec.max_replicas > 1 and "ReadWriteMany" not in observed.claim.access_modes:
        modes = ", ".join(observed.claim.access_modes)
        return Waiting.of(
            WaitingReason.ClaimNotShared,
            f"{path}: {name!r} is {modes}: several workers need a ReadWriteMany claim",
        )
    return None


def _with_events(
    job: AnyJob, status: TrainingJobStatus, events: Iterable[Event], now: datetime
) -> TrainingJobStatus:
    """The status with these events, so that the next operator can make them if this one cannot."""
    new = {names.event(job.name, job.uid, event.reason, event.key): event for event in events}
    known = {event.name for event in status.recent_events}
    fresh = (
        EventStatus(
            name=name,
            time=format_time(now),
            type=event.type,
            reason=event.reason,
            message=event.message[:MESSAGE_LIMIT],
        )
        for name, event in new.items()
        if name not in known
    )
    kept = (*status.recent_events, *fresh)[-EVENTS_KEPT:]
    return status.model_copy(update={"recent_events": kept})


def _with_shown_release(status: TrainingJobStatus, observed: Observed) -> TrainingJobStatus:
    """The status with images and protocol as the job's pods show them, where it lacks them: a part
    of it was unreadable or removed. A pod that replaces one of them is then of their release, and
    runs the very image that they run, if a kubelet says which that is.
    """
    if not observed.pods:
        return status
    pods = {
        "trainer": (*observed.stores, *observed.workers),
        "coordinator": observed.coordinators,
    }
    shown = {
        name: pod.image
        for name, of_role in pods.items()
        for pod in of_role
        if 0 < len(pod.image) <= IMAGE_LIMIT
    }
    report = observed.coordinator.status
    protocol = status.protocol_version or (report.protocol if report else None)
    images = {
        name: _exact(image, pods.get(name, ()))
        for name, image in {**shown, **status.images}.items()
    }
    return status.model_copy(update={"images": images, "protocol_version": protocol})


def _exact(image: str, pods: Iterable[Pod]) -> str:
    """The image by the digest that the first of these pods shows to which it belongs."""
    shown = (with_digest(image, pod.image_id) for pod in pods if pod.image == image)
    return next((exact for exact in shown if exact != image), image)


def _with_address(status: TrainingJobStatus, observed: Observed) -> TrainingJobStatus:
    """The status with the address of the Service, which the next one asks for."""
    address = observed.service.address if observed.service else ""
    return status.model_copy(update={"service_address": address}) if address else status


def _start(
    job: Job, status: TrainingJobStatus, observed: Observed, blocker: Waiting | None, now: datetime
) -> Step:
    """What a start, or a start after a suspension, fixes once: time, images, protocol,
    key; and the job's own claim.

    While there are pods, the protocol is theirs: it stays open until the coordinator reports it.
    """
    if blocker is not None:
        return Step(status)
    storage = job.spec.checkpoint.storage
    makes_claim = storage is not None and storage.volume_claim_template is not None
    actions = (CreateClaim(),) if makes_claim and observed.claim is None else ()
    protocol = None if observed.pods else PROTOCOL_VERSION
    fixed = {
        "start_time": status.start_time or format_time(now),
        "images": {**observed.images, **status.images},
        "protocol_version": status.protocol_version or protocol,
        "token_key": status.token_key or observed.token_key or None,
    }
    events: tuple[Event, ...] = ()
    resumes = status.start_time is None and job.status.holds("Suspended")
    if resumes and job.status.coordinator_term:
        events = (Event("Normal", "Resumed", "pods are made again", f"resumed-{job.generation}"),)
    return Step(status.model_copy(update=fixed), actions, events)


def _unreadable_status(job: AnyJob) -> tuple[Event, ...]:
    if not job.unreadable_status:
        return ()
    fields = ", ".join(job.unreadable_status)
    text = f"status: cannot read {fields} (default values are used; see the operator's log)"
    return (Event("Warning", "StatusUnreadable", text[:MESSAGE_LIMIT], fields),)


_BAD_LABELS = (
    "cannot read the number at the end of its name, or its labels "
    f"{names.JOB}, {names.ROLE}, {names.INDEX}, {names.TERM} (delete it, and stop what edits "
    "labels: new pods are made ever later)"
)
_NO_OWNER = (
    "somebody has changed metadata.ownerReferences, so that the job controls it no more (delete "
    "it, or leave it to its new owner, and stop what changes owners: new pods are made ever later)"
)


def _unreadable_pods(observed: Observed) -> tuple[Event, ...]:
    pods = (
        *((pod, _BAD_LABELS) for pod in observed.unreadable),
        *((pod, _NO_OWNER) for pod in observed.disowned),
    )
    return tuple(
        Event(
            "Warning", "PodUnreadable", f"pod {pod.name} takes no part in the job: {why}", pod.uid
        )
        for pod, why in pods
    )


def _requeue_after(
    job: AnyJob,
    observed: Observed,
    status: TrainingJobStatus,
    blocker: Waiting | None,
    now: datetime,
) -> float:
    view = observed.coordinator
    waiting = (
        status.suspected_nodes,
        view.failures and view.trusts_agents,
        view.lost_seconds,
        blocker,
        any(pod.terminating or pod.phase == "Succeeded" for pod in observed.pods),
        backoff_left(job, status, now) > 0,
        stranded(observed),
    )
    if any(waiting):
        return REQUEUE_SECONDS
    due = (
        token_due(observed, now),
        unresponsive_due(observed),
        outage_due(observed),
        deadline_due(job, now),
    )
    soonest = min((seconds for seconds in due if seconds is not None), default=STEADY_SECONDS)
    return min(STEADY_SECONDS, max(soonest, REQUEUE_SECONDS))
