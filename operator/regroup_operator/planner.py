"""Decides what to do about a job: `plan(job, observed, now) -> Plan`. Pure; reads as the operator's policy.

What can't be derived again (terms, incarnations, ends already counted, suspects) goes into the status of the plan,
which is written before the plan's actions. A crash between any two steps therefore counts each failure exactly once,
and no name is used twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from regroup_operator import failures
from regroup_operator.api import NodeFailurePolicy, RestartPolicy, TrainingJobStatus
from regroup_operator.losses import account_for_ends, avoids_in_vain, can_be_judged, find_lost, next_suspects
from regroup_operator.observed import LEASE_STALE_SECONDS, Blocker, Job, Observed, Pod, format_time, parse_time
from regroup_operator.plan import (
    Action,
    CreateClaim,
    CreateCoordinator,
    CreateWorker,
    DeleteJob,
    DeletePod,
    EnsureAccess,
    EnsureService,
    Event,
    Plan,
    PostLost,
    PutDesired,
)
from regroup_operator.status import MESSAGE_LIMIT, Ending, Situation, project
from regroup_trainer.contract import PROTOCOL_VERSION

PROBE_FAILURES = 3
"""Probes in a row, a second apart, after which the coordinator gets a successor."""
LOOK_AGAIN_SECONDS = 2.0
"""While something is suspected or waited for that sends no event."""
STEADY_SECONDS = 30.0
VERDICT_SECONDS = 10.0
"""How long a worker that ended with 0 keeps its place, since the job may have ended."""
IMAGE_PATIENCE_SECONDS = 60.0
"""How long an image that never could be had is tried before a job that never trained fails."""


def plan(job: Job, observed: Observed, now: datetime) -> Plan:
    """What to do about `job` now."""
    if job.deleting:
        return Plan(job.status)
    if ending := _written_ending(job.status):
        return _after_the_end(job, observed, ending, now)
    if ending := _find_ending(job, observed, now):
        return _end(job, observed, ending, now)
    if job.suspend:
        return _suspend(job, observed, now)
    if _was_suspended_world(observed):
        return _tear_down(job, observed, now)
    return _run(job, observed, now)


# --- the end ---------------------------------------------------------------------------------------------------------


def _written_ending(status: TrainingJobStatus) -> Ending | None:
    for kind, complete in (("Complete", True), ("Failed", False)):
        condition = next((c for c in status.conditions if c.type == kind and c.status == "True"), None)
        if condition is not None:
            return Ending(complete, condition.reason, condition.message)
    return None


def _find_ending(job: Job, observed: Observed, now: datetime) -> Ending | None:
    """Why the job has ended, if it has: the coordinator's verdict, its deadline, a worker that cannot be mended."""
    answer = observed.coordinator.status
    verdict = answer.verdict if answer else None
    if verdict is not None and verdict.outcome == "completed":
        return Ending(True, "Completed", verdict.message)
    if verdict is not None and verdict.outcome == "failed":
        return Ending(False, "TrainingFailed", verdict.message)
    return _deadline(job, now) or _hopeless_worker(job, observed) or _hopeless_image(job, observed, now)


def _deadline(job: Job, now: datetime) -> Ending | None:
    limit = job.spec.active_deadline_seconds if job.spec else None
    if limit is None or job.suspend or job.status.start_time is None:
        return None
    if (now - parse_time(job.status.start_time)).total_seconds() < limit:
        return None
    return Ending(False, "DeadlineExceeded", f"not done {limit} s after its start (spec.activeDeadlineSeconds)")


def _hopeless_worker(job: Job, observed: Observed) -> Ending | None:
    for pod in observed.workers:
        if pod.phase != "Failed" or pod.terminating or pod.uid in job.status.handled_pods:
            continue
        rule = failures.classify(pod)
        if rule.action == "FailJob":
            return Ending(False, "WorkerFailed", failures.describe(pod, rule))
    policy = job.spec.restart_policy if job.spec else RestartPolicy()
    if 0 <= policy.max_restarts < job.status.pod_failures:
        text = f"{job.status.pod_failures} worker pods in a row failed without a step in between"
        return Ending(False, "RestartsExhausted", f"{text} (spec.restartPolicy.maxRestarts={policy.max_restarts})")
    return None


def _hopeless_image(job: Job, observed: Observed, now: datetime) -> Ending | None:
    """An image that cannot be had fails a job that never trained; one that trains waits for the registry."""
    if job.status.world_generation is not None or job.status.start_time is None:
        return None
    tried = (now - parse_time(job.status.start_time)).total_seconds()
    for pod in observed.workers:
        hopeless = pod.waiting_reason in failures.HOPELESS_IMAGE_REASONS
        if pod.alive and (
            hopeless or (pod.waiting_reason in failures.IMAGE_REASONS and tried > IMAGE_PATIENCE_SECONDS)
        ):
            text = f"image {pod.image} of pod {pod.name} cannot be had: {pod.waiting_reason}: {pod.waiting_message}"
            return Ending(False, "ImageError", text)
    return None


def _end(job: Job, observed: Observed, ending: Ending, now: datetime) -> Plan:
    """Write the verdict; pods are cleaned up when it is written."""
    status = project(job, observed, job.status, Situation(ending=ending), now)
    event = Event(
        "Normal" if ending.complete else "Warning", "Completed" if ending.complete else "Failed", ending.message, "end"
    )
    return Plan(status, events=(event,), look_again_seconds=0.0)


def _after_the_end(job: Job, observed: Observed, ending: Ending, now: datetime) -> Plan:
    policy = job.spec.clean_pod_policy if job.spec else "Running"
    pods = [
        pod for pod in observed.pods if not pod.terminating and (policy == "All" or (policy == "Running" and pod.alive))
    ]
    actions: list[Action] = [DeletePod(pod, "the job has ended") for pod in pods]
    seconds_left = _time_to_live(job, now)
    if seconds_left is not None and seconds_left <= 0:
        actions.append(DeleteJob())
    status = project(job, replace(observed, apply_error=""), job.status, Situation(ending=ending), now)
    return Plan(status, tuple(actions), look_again_seconds=seconds_left)


def _time_to_live(job: Job, now: datetime) -> float | None:
    limit = job.spec.ttl_seconds_after_finished if job.spec else None
    if limit is None or job.status.completion_time is None:
        return None
    return limit - (now - parse_time(job.status.completion_time)).total_seconds()


# --- suspension ------------------------------------------------------------------------------------------------------


def _was_suspended_world(observed: Observed) -> bool:
    answer = observed.coordinator.status
    return answer is not None and answer.verdict is not None and answer.verdict.outcome == "suspended"


def _suspend(job: Job, observed: Observed, now: datetime) -> Plan:
    """Let the coordinator save and stop, then give all pods back."""
    if not observed.pods:
        return _suspended(job, observed, now)
    coordinator = _current_coordinator(job, observed)
    answer = observed.coordinator.status
    running = coordinator is not None and coordinator.phase == "Running"
    reachable = running and observed.coordinator.failures < PROBE_FAILURES
    if _was_suspended_world(observed) or not reachable or _suspending_for_too_long(job, now):
        return _tear_down(job, observed, now)
    actions: tuple[Action, ...] = (PutDesired(),) if answer and job.spec and answer.revision < job.generation else ()
    status = project(job, observed, job.status, Situation(job.blocker, "suspending"), now)
    return Plan(status, actions, look_again_seconds=LOOK_AGAIN_SECONDS, follow=True)


def _suspending_for_too_long(job: Job, now: datetime) -> bool:
    condition = job.status.condition("Suspended")
    if condition is None or condition.status != "Unknown":
        return False
    grace = job.spec.checkpoint.termination_grace_seconds if job.spec else 120
    return (now - parse_time(condition.last_transition_time)).total_seconds() > grace


def _tear_down(job: Job, observed: Observed, now: datetime) -> Plan:
    """Give all pods back; once they are gone the job is suspended, or starts anew if that was taken back meanwhile."""
    actions = tuple(DeletePod(pod, "the job is suspended") for pod in observed.pods if not pod.terminating)
    status = project(job, observed, job.status, Situation(job.blocker, "suspending"), now)
    return Plan(status, actions, look_again_seconds=LOOK_AGAIN_SECONDS)


def _suspended(job: Job, observed: Observed, now: datetime) -> Plan:
    remembered = job.status.model_copy(
        update={
            "images": {},
            "protocol_version": None,
            "handled_pods": (),
            "pod_failures": 0,
            "start_time": None,
            "world_generation": None,
        }
    )
    status = project(job, observed, remembered, Situation(job.blocker, "suspended"), now)
    events: tuple[Event, ...] = ()
    if not job.status.holds("Suspended"):
        events = (Event("Normal", "Suspended", "all pods are given back", f"suspended-{job.generation}"),)
    return Plan(status, events=events)


# --- running ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Step:
    """What one part of the policy adds to the plan."""

    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()


def _run(job: Job, observed: Observed, now: datetime) -> Plan:
    """Account for losses, keep a coordinator, keep the workers, tell the coordinator; in this order."""
    blocker = _blocker(job, observed)
    losses = _losses(job, observed, now)
    rest = replace(observed, pods=tuple(pod for pod in observed.pods if pod not in _deleted(losses.actions)))
    started = _start(job, losses.status, observed, blocker, now)
    coordinator = _coordinator(job, rest, started.status, blocker)
    workers = _workers(job, rest, coordinator.status, blocker, now)
    told = _tell(job, observed)
    status = project(job, observed, workers.status, Situation(blocker), now)
    return Plan(
        status=status,
        actions=(*losses.actions, *started.actions, *coordinator.actions, *told, *workers.actions),
        events=(*losses.events, *started.events, *workers.events, *_blocked_event(job, blocker)),
        look_again_seconds=_look_again(job, rest, workers.status, blocker, now),
        follow=True,
    )


def _deleted(actions: Iterable[Action]) -> tuple[Pod, ...]:
    return tuple(action.pod for action in actions if isinstance(action, DeletePod))


def _blocker(job: Job, observed: Observed) -> Blocker | None:
    """Why no pod may be made: a wrong spec, or a claim that is missing or cannot be shared."""
    if job.blocker is not None or job.spec is None:
        return job.blocker
    storage = job.spec.checkpoint.storage
    if storage is None or storage.persistent_volume_claim is None:
        return None
    name = storage.persistent_volume_claim.claim_name
    path = "spec.checkpoint.storage.persistentVolumeClaim.claimName"
    if observed.claim is None:
        return Blocker(
            "ClaimMissing", f"{path}: there is no PersistentVolumeClaim {name!r} in {job.namespace}: create it"
        )
    if observed.claim.deleting:
        return Blocker("ClaimMissing", f"{path}: PersistentVolumeClaim {name!r} is being deleted")
    if job.spec.max_replicas > 1 and "ReadWriteMany" not in observed.claim.access_modes:
        modes = ", ".join(observed.claim.access_modes)
        return Blocker("ClaimNotShared", f"{path}: {name!r} is {modes}: several workers need a ReadWriteMany claim")
    return None


def _blocked_event(job: Job, blocker: Blocker | None) -> tuple[Event, ...]:
    former = job.status.condition("Ready")
    if blocker is None or (former is not None and former.message == blocker.message[:MESSAGE_LIMIT]):
        return ()
    reason = "InvalidSpec" if blocker.reason in ("InvalidSpec", "NotSupported") else blocker.reason
    return (Event("Warning", reason, blocker.message, f"{job.generation}-{blocker.message}"),)


def _losses(job: Job, observed: Observed, now: datetime) -> _Step:
    """Count the ends of workers once, suspect nodes that went silent, remove what is lost."""
    policy = job.spec.node_failure_policy if job.spec else NodeFailurePolicy()
    remembered = _forgive(job.status, observed)
    lost = find_lost(remembered, observed, policy)
    account = account_for_ends(remembered, observed, lost, policy)
    suspects = next_suspects(remembered, observed, lost)
    status = account.status.model_copy(update={"suspected_nodes": suspects})
    if account.failed:
        status = status.model_copy(update={"last_pod_failure_time": format_time(now)})
    gone = [DeletePod(pod, why) for pod, why in lost.items()]
    stuck = [DeletePod(pod, "its node is gone", force=True) for pod in _stuck(observed, policy)]
    superseded = [DeletePod(pod, "superseded") for pod in account.superseded]
    events = [*account.events, *(_node_lost(pod, why) for pod, why in lost.items() if pod.node)]
    events += [
        Event("Warning", "PodForceDeleted", f"{d.pod.name} was removed by force: its node is gone", d.pod.uid)
        for d in stuck
    ]
    return _Step(status, (*gone, *stuck, *superseded), tuple(events))


def _node_lost(pod: Pod, why: str) -> Event:
    return Event("Warning", "NodeLost", f"{pod.name} on node {pod.node} is given up: {why}", pod.uid)


def _forgive(status: TrainingJobStatus, observed: Observed) -> TrainingJobStatus:
    """Failures of pods in a row end with a step of training."""
    answer = observed.coordinator.status
    if status.pod_failures and answer and answer.phase == "running" and answer.progress:
        return status.model_copy(update={"pod_failures": 0})
    return status


def _stuck(observed: Observed, policy: NodeFailurePolicy) -> list[Pod]:
    """Pods that wait for a kubelet that is gone, and that may be forced without two writers on one volume."""
    return [pod for pod in observed.pods if pod.terminating and pod.node and _may_force(pod, observed, policy)]


def _may_force(pod: Pod, observed: Observed, policy: NodeFailurePolicy) -> bool:
    node = observed.nodes.get(pod.node)
    if node is None:
        return False
    if not node.exists or node.out_of_service:
        return True
    claim = observed.claim
    shared = pod.only_shared_volumes and all(
        claim is not None and name == claim.name and "ReadWriteMany" in claim.access_modes for name in pod.claims
    )
    return shared and not node.ready and node.not_ready_seconds >= policy.force_delete_seconds


def _start(job: Job, status: TrainingJobStatus, observed: Observed, blocker: Blocker | None, now: datetime) -> _Step:
    """What a start, or a start after a suspension, fixes once: time, images, protocol; and the job's own objects."""
    if blocker is not None or job.spec is None:
        return _Step(status)
    actions: list[Action] = []
    storage = job.spec.checkpoint.storage
    if storage is not None and storage.volume_claim_template is not None and observed.claim is None:
        actions.append(CreateClaim())
    if status.start_time is not None:
        return _Step(status, tuple(actions))
    fixed = {
        "start_time": format_time(now),
        "images": dict(observed.images),
        "protocol_version": PROTOCOL_VERSION,
    }
    events: tuple[Event, ...] = ()
    if job.status.holds("Suspended") and job.status.coordinator_term:
        events = (Event("Normal", "Resumed", "pods are made again", f"resumed-{job.generation}"),)
    return _Step(status.model_copy(update=fixed), tuple(actions), events)


def _current_coordinator(job: Job, observed: Observed) -> Pod | None:
    term = job.status.coordinator_term
    return next((pod for pod in observed.coordinators if pod.term == term and pod.alive), None)


def _coordinator(job: Job, observed: Observed, status: TrainingJobStatus, blocker: Blocker | None) -> _Step:
    """Keep one coordinator; a dead one gets a successor under the next term, never a second life under its own."""
    current = _current_coordinator(job, observed)
    old = [
        DeletePod(pod, "a coordinator of an older term")
        for pod in observed.coordinators
        if pod is not current and not pod.terminating
    ]
    if blocker is not None or (current is not None and not _is_dead(current, observed, status)):
        service = _service(observed, status.coordinator_term) if current is not None else ()
        return _Step(status, (*old, *service))
    if current is not None:
        old.append(DeletePod(current, "it does not answer"))
    term = status.coordinator_term + 1
    excluded = (*status.suspected_nodes, *status.excluded_nodes)
    if current is not None and current.node not in excluded and can_be_judged(current.node, observed.nodes):
        excluded = (*excluded, current.node)
        status = status.model_copy(update={"suspected_nodes": (*status.suspected_nodes, current.node)})
    return _Step(
        status.model_copy(update={"coordinator_term": term}),
        (EnsureAccess(), EnsureService(term), CreateCoordinator(term, excluded), *old),
    )


def _service(observed: Observed, term: int) -> tuple[Action, ...]:
    wrong = observed.service is None or observed.service.term != term
    return (EnsureAccess(), EnsureService(term)) if wrong or not observed.network_policy else ()


def _is_dead(pod: Pod, observed: Observed, status: TrainingJobStatus) -> bool:
    """Whether the coordinator needs a successor.

    A container that its kubelet restarts is left to the kubelet. One that never answered us is only given up with its
    node: perhaps it is we who cannot reach it.
    """
    view = observed.coordinator
    node = observed.nodes.get(pod.node)
    node_is_bad = node is not None and (
        not node.exists or not node.ready or node.lease_unchanged_seconds >= LEASE_STALE_SECONDS
    )
    if pod.phase == "Pending":
        misplaced = pod.node in status.suspected_nodes or bool(pod.node and node_is_bad)
        return misplaced or avoids_in_vain(pod, {*status.suspected_nodes, *status.excluded_nodes})
    if view.failures < PROBE_FAILURES:
        return False
    return node_is_bad or (view.status is not None and not pod.waiting_reason)


def _workers(job: Job, observed: Observed, status: TrainingJobStatus, blocker: Blocker | None, now: datetime) -> _Step:
    """One live pod per index below `replicas`; those above go, those missing are made."""
    if job.spec is None:
        return _Step(status)
    live = [pod for pod in observed.workers if pod.alive]
    extra = [DeletePod(pod, "the job has fewer workers now") for pod in live if pod.index >= job.spec.replicas]
    held = {pod.index for pod in (*live, *_waiting_for_verdict(observed, now))}
    missing = sorted(set(range(job.spec.replicas)) - held)
    if blocker is not None or not missing or observed.service is None or not observed.service.address:
        return _Step(status, tuple(extra))
    if _backoff_left(job, status, now) > 0:
        return _Step(status, tuple(extra))
    incarnation = status.next_incarnation
    excluded = tuple(dict.fromkeys((*status.suspected_nodes, *status.excluded_nodes)))
    text = f"{len(missing)} worker pods: " + ", ".join(f"w{index}-{incarnation}" for index in missing[:16])
    return _Step(
        status.model_copy(update={"next_incarnation": incarnation + 1}),
        (*extra, *(CreateWorker(index, incarnation, excluded) for index in missing)),
        (Event("Normal", "WorkersCreated", text, str(incarnation)),),
    )


def _waiting_for_verdict(observed: Observed, now: datetime) -> list[Pod]:
    """Workers that were told to exit: the coordinator's verdict, which says why, is on its way."""
    return [
        pod
        for pod in observed.workers
        if pod.phase == "Succeeded"
        and not pod.terminating
        and pod.ended
        and (now - parse_time(pod.ended)).total_seconds() < VERDICT_SECONDS
    ]


def _backoff_left(job: Job, status: TrainingJobStatus, now: datetime) -> float:
    """Seconds before failed workers are replaced."""
    if not status.pod_failures or status.last_pod_failure_time is None or job.spec is None:
        return 0.0
    policy = job.spec.restart_policy
    pause = failures.backoff_seconds(status.pod_failures, policy.backoff_seconds, policy.max_backoff_seconds)
    return pause - (now - parse_time(status.last_pod_failure_time)).total_seconds()


def _tell(job: Job, observed: Observed) -> tuple[Action, ...]:
    """Tell the coordinator a newer spec, and the members that Kubernetes knows to be gone."""
    answer = observed.coordinator.status
    if answer is None:
        return ()
    actions: list[Action] = []
    if job.spec is not None and answer.revision < job.generation:
        actions.append(PutDesired())
    running = {pod.uid for pod in observed.workers if pod.phase in ("Pending", "Running", "Unknown")}
    gone = tuple(m.member for m in answer.members if not m.lost and m.member not in running)
    finished = answer.verdict is not None or answer.phase == "stopping"
    if gone and not finished:
        actions.append(PostLost(gone, "Kubernetes says that the pod has ended"))
    return tuple(actions)


def _look_again(
    job: Job, observed: Observed, status: TrainingJobStatus, blocker: Blocker | None, now: datetime
) -> float:
    if observed.service is None and blocker is None:
        return 0.0
    view = observed.coordinator
    waiting = (
        status.suspected_nodes,
        view.failures,
        view.lost_seconds,
        blocker,
        any(pod.terminating or pod.phase == "Succeeded" for pod in observed.pods),
        _backoff_left(job, status, now) > 0,
    )
    return LOOK_AGAIN_SECONDS if any(waiting) else STEADY_SECONDS
