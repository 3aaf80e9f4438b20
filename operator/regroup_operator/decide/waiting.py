"""Why a job is not ready: one ordered table, from the most to the least specific reason. Pure.

The message of the status, the condition Ready, the metric trainingjob_waiting and the events all
show what `find_waiting` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from regroup_operator.api.names import COORDINATOR, CRASH_LOOP, INJECTOR
from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.attempt import read_attempt
from regroup_operator.decide.coordinator_evidence import unknown_protocol_of
from regroup_operator.decide.failures import (
    CHECK_START,
    IMAGE_REASONS,
    classify,
    describe,
    describe_last_end,
)
from regroup_operator.decide.launchers import launcher_of
from regroup_operator.decide.plan import MESSAGE_LIMIT, Event, PlanContext
from regroup_operator.decide.staffing import backoff_end
from regroup_operator.decide.suspension import waits_for_volume
from regroup_operator.observe.observed import AnyJob, Observed, Pod
from regroup_trainer.protocol.job_status import CoordinatorPhase, Waiting
from regroup_trainer.protocol.message import named
from regroup_trainer.protocol.waiting_reasons import WaitingReason

NODES_SHOWN = 8
"""Names of nodes in a message."""


@dataclass(frozen=True)
class JobView:
    """All that the rows of the table read."""

    job: AnyJob
    observed: Observed
    status: TrainingJobStatus
    """The new one, with its phase."""
    context: PlanContext


@dataclass(frozen=True)
class Row:
    """One finding that may keep a job from being ready."""

    find: Callable[[JobView], Waiting | None]
    kind: Literal["blocks", "hinders", "waits"]
    """`blocks`: the job is not ready, even while it trains. `hinders`: while it trains, the message
    names it beside the progress. `waits`: of no interest while it trains.
    """


def find_waiting(view: JobView) -> Waiting | None:
    """Why the job is not ready; None while it trains undisturbed, and after its end."""
    if view.context.outcome is not None:
        return None
    trains = view.status.phase == "Running"
    rows = (row for row in TABLE if row.kind == "blocks" or not trains)
    return next((found for row in rows if (found := row.find(view))), None)


def find_hindrance(view: JobView) -> Waiting | None:
    """What is wrong with a job although it may train; None when nothing is."""
    rows = (row for row in TABLE if row.kind != "waits")
    return next((found for row in rows if (found := row.find(view))), None)


def missing_worker(view: JobView) -> str:
    """Why a job has fewer workers than it wants: the first that is missing, and what comes next;
    empty when none is.
    """
    job, status = view.job, view.status
    if status.ready_replicas >= job.size.replicas:
        return ""
    live = {pod.index: pod for pod in view.observed.workers if pod.alive}
    at_work = _uids_at_work(view)
    missing = (n for n in range(job.size.replicas) if n not in live or live[n].uid not in at_work)
    index = next(missing, None)
    if text := unschedulable_message(view.observed, status):
        return text
    if index is None:
        return ""
    return _why_idle(view, live[index]) if index in live else _why_no_pod(view, index)


def _uids_at_work(view: JobView) -> set[str]:
    """UIDs of the workers that have ranks; without a coordinator, of those that run."""
    report = view.observed.coordinator.status
    if report is None:
        return {pod.uid for pod in view.observed.workers if pod.phase == "Running"}
    return {m.member for m in report.members if m.rank is not None and not m.lost}


def _why_no_pod(view: JobView, index: int) -> str:
    end = backoff_end(view.job, view.status)
    if end is None:
        return f"worker {index} has no pod: a new one is being made"
    failed = f"{view.status.pod_failures} pods in a row failed (see their logs)"
    return f"worker {index} has no pod: the next is made at {format_time(end)}, since {failed}"


def _why_idle(view: JobView, pod: Pod) -> str:
    report = view.observed.coordinator.status
    members = {m.member for m in report.members} if report else set()
    if not pod.node:
        return f"worker pod {pod.name} waits for a node"
    where = f"worker pod {pod.name} on node {pod.node}"
    if pod.phase != "Running":
        return f"{where} starts (see kubectl describe pod {pod.name})"
    if pod.uid in members:
        return f"{where} is connected, and takes part in the next generation"
    if report is not None and pod.uid in (report.agents_in_contact or ()):
        return f"{where} imports torch, and connects after that"
    return f"{where} runs, and has not connected yet (see kubectl logs {pod.name})"


_RUNTIME_REASONS = frozenset({"CreateContainerError", "RunContainerError"})
_OF_ONE_POD = frozenset(
    reason.name
    for reason in (
        WaitingReason.CreateContainerConfigError,
        WaitingReason.CreateContainerError,
        WaitingReason.SidecarCrashing,
        WaitingReason.FailedMount,
        WaitingReason.ContainerCreating,
        WaitingReason.WorkerUnresponsive,
    )
)


def waiting_events(view: JobView, waiting: Waiting | None) -> tuple[Event, ...]:
    """A Warning when somebody has to mend something, once for each new message; once for a spec
    where it names one of many pods, which start in turn.
    """
    if waiting is None or waiting != find_hindrance(view):
        return ()
    former = view.job.status.condition("Ready")
    if former is not None and former.message == waiting.message[:MESSAGE_LIMIT]:
        return ()
    what = waiting.reason if waiting.reason in _OF_ONE_POD else waiting.message
    key = f"{view.job.generation}-{what}"
    return (Event("Warning", waiting.reason, waiting.message, key),)


# --- the rows -------------------------------------------------------------------------------------


def _blocker(view: JobView) -> Waiting | None:
    return view.context.blocker


def _refused_request(view: JobView) -> Waiting | None:
    error = view.observed.apply_error
    return Waiting.of(view.observed.apply_reason, error) if error else None


def _image(view: JobView) -> Waiting | None:
    pod = _first_live(view, lambda pod: pod.waiting_reason in IMAGE_REASONS)
    return Waiting.of(WaitingReason.ImageError, image_message(pod)) if pod else None


def image_message(pod: Pod) -> str:
    """Which image of which pod cannot be pulled, why, and what to check."""
    where = f" on node {pod.node}" if pod.node else ""
    why = ": ".join(filter(None, (pod.waiting_reason, pod.waiting_message)))
    is_ours = pod.role == COORDINATOR or pod.waiting_container == INJECTOR
    field = "the operator's image" if is_ours else "spec.image or spec.template"
    other = pod.waiting_container
    what = f"the image of container {other}" if other else f"image {pod.image}"
    return f"cannot pull {what} of pod {pod.name}{where}: {why} (check {field})"


def _container(pod: Pod) -> str:
    """The container that waits, and where."""
    name = f"container {pod.waiting_container}" if pod.waiting_container else "the container"
    return f"{name} of pod {pod.name} on node {pod.node}"


def _container_config(view: JobView) -> Waiting | None:
    reason = WaitingReason.CreateContainerConfigError
    pod = _first_live(view, lambda pod: pod.waiting_reason == reason.name)
    if pod is None:
        return None
    what = f"cannot make {_container(pod)}: {pod.waiting_message}"
    advice = "make what is missing, or correct its name in spec.template"
    return Waiting.of(reason, f"{what} ({advice})")


def _refused_by_runtime(view: JobView) -> Waiting | None:
    pod = _first_live(view, lambda pod: pod.waiting_reason in _RUNTIME_REASONS)
    if pod is None:
        return None
    why = pod.waiting_message or pod.waiting_reason
    text = f"the runtime cannot make {_container(pod)}: {why}"
    return Waiting.of(WaitingReason.CreateContainerError, f"{text} ({CHECK_START})")


def _coordinator_crash(view: JobView) -> Waiting | None:
    coordinators = {pod.uid for pod in view.observed.coordinators}
    pod = _first_live(
        view, lambda pod: pod.uid in coordinators and pod.waiting_reason == CRASH_LOOP
    )
    if pod is None:
        return None
    problem = unknown_protocol_of(view.status)
    advice = f"it {problem}" if problem else f"see kubectl logs {pod.name} --previous"
    text = f"{describe(pod, classify(pod))}: it fails each time that it is started ({advice})"
    return Waiting.of(WaitingReason.CoordinatorCrashing, text)


def _sidecar_crash(view: JobView) -> Waiting | None:
    workers = {pod.uid for pod in view.observed.workers}
    pod = _first_live(view, lambda pod: pod.uid in workers and pod.waiting_reason == CRASH_LOOP)
    if pod is None:
        return None
    which = f" -c {pod.waiting_container}" if pod.waiting_container else ""
    text = f"{_container(pod)} fails each time that it is started"
    if pod.ended_container == pod.waiting_container and (end := describe_last_end(pod)):
        text += f": {end}"
    advice = f"see kubectl logs {pod.name}{which} --previous"
    return Waiting.of(WaitingReason.SidecarCrashing, f"{text} ({advice})")


def _pod_does_not_start(view: JobView) -> Waiting | None:
    return view.context.hindrance


def _suspended(view: JobView) -> Waiting | None:
    if view.context.suspension != "suspended":
        return None
    text = "suspended: no pods are held (set spec.suspend to false to train on)"
    return Waiting.of(WaitingReason.Suspended, text)


def _suspending(view: JobView) -> Waiting | None:
    if view.context.suspension != "suspending":
        return None
    ending = [pod.name for pod in view.observed.pods if pod.terminating]
    if ending and len(ending) == len(view.observed.pods):
        text = f"suspending: waiting for the end of {named(ending, len(ending))}"
        return Waiting.of(WaitingReason.Suspending, text)
    text = f"suspending: {_progress(view)}"
    if not waits_for_volume(view.observed):
        return Waiting.of(WaitingReason.Suspending, text)
    advice = "free or repair the volume; to give the newest steps up, delete the worker pods"
    return Waiting.of(WaitingReason.VolumeUnavailable, f"{text} ({advice})")


def _starting(view: JobView) -> Waiting | None:
    report = view.observed.coordinator.status
    if report is None or report.phase not in ("starting", "stopping"):
        return None
    return _coordinator_report(view)


def _unschedulable(view: JobView) -> Waiting | None:
    text = unschedulable_message(view.observed, view.status)
    return Waiting.of(WaitingReason.Unschedulable, text) if text else None


def unschedulable_message(observed: Observed, status: TrainingJobStatus) -> str:
    """A pod that the scheduler cannot place, and why; empty when there is none. The scheduler
    speaks of the nodes that are left: one that is lost goes before its words.
    """
    pod = next((pod for pod in observed.pods if pod.alive and pod.unschedulable), None)
    if pod is None:
        return ""
    text = f"pod {pod.name} cannot be scheduled: {pod.unschedulable}"
    lost = [name for name in pod.excluded_nodes if name in status.suspected_nodes]
    failing = [name for name in pod.excluded_nodes if name not in lost]
    if failing:
        nodes = ", ".join(failing[:NODES_SHOWN])
        text = f"{text} (the job avoids {nodes}: see status.excludedNodes)"
    return f"{_lost_nodes(lost)}; {text}" if lost else text


def _lost_nodes(names: list[str]) -> str:
    if len(names) == 1:
        return f"node {names[0]} does not respond (bring it back, or add another one)"
    nodes = ", ".join(names[:NODES_SHOWN])
    return f"nodes {nodes} do not respond (bring them back, or add others)"


def _backoff(view: JobView) -> Waiting | None:
    job, status = view.job, view.status
    replaced = any(pod.alive for pod in view.observed.workers)
    end = backoff_end(job, status)
    if end is None or replaced:
        return None
    failed = f"{status.pod_failures} pods in a row failed (see their logs)"
    text = f"{failed}: the next ones are made at {format_time(end)}"
    return Waiting.of(WaitingReason.BackOff, text)


def _coordinator_unreachable(view: JobView) -> Waiting | None:
    coordinator = view.observed.coordinator
    if (
        not launcher_of(view.job).has_coordinator
        or coordinator.status is not None
        or not coordinator.error
    ):
        return None
    return Waiting.of(WaitingReason.CoordinatorUnreachable, _progress(view))


def _coordinator_pending(view: JobView) -> Waiting | None:
    if not launcher_of(view.job).has_coordinator or view.observed.coordinator.status is not None:
        return None
    return Waiting.of(WaitingReason.CoordinatorPending, _progress(view))


_REASONS: dict[CoordinatorPhase, WaitingReason] = {
    "waiting": WaitingReason.TooFewWorkers,
    "starting": WaitingReason.GenerationStarting,
    "recovering": WaitingReason.GenerationFailed,
    "suspended": WaitingReason.Suspending,
}
"""Phase of a coordinator that gives no reason -> the reason. In the other phases its generation
ends.
"""


def _coordinator_report(view: JobView) -> Waiting | None:
    report = view.observed.coordinator.status
    if report is None:
        return None
    reason = _REASONS.get(report.phase, WaitingReason.GenerationEnding)
    return report.waiting or Waiting.of(reason, _progress(view))


def _store_pending(view: JobView) -> Waiting | None:
    attempt = read_attempt(view.observed, view.status.coordinator_term)
    if attempt.store is not None and attempt.store.phase == "Running":
        return None
    return Waiting.of(WaitingReason.StorePending, _progress(view))


def _workers_missing(view: JobView) -> Waiting | None:
    return Waiting.of(WaitingReason.TooFewWorkers, _progress(view))


def _progress(view: JobView) -> str:
    return launcher_of(view.job).progress_message(view.job, view.observed, view.status)


def _first_live(view: JobView, matches: Callable[[Pod], bool]) -> Pod | None:
    return next((pod for pod in view.observed.pods if pod.alive and matches(pod)), None)


TABLE = (
    Row(_blocker, "blocks"),
    Row(_refused_request, "blocks"),
    Row(_image, "hinders"),
    Row(_container_config, "hinders"),
    Row(_refused_by_runtime, "hinders"),
    Row(_coordinator_crash, "hinders"),
    Row(_sidecar_crash, "hinders"),
    Row(_pod_does_not_start, "hinders"),
    Row(_suspended, "waits"),
    Row(_suspending, "waits"),
    Row(_starting, "waits"),
    Row(_unschedulable, "waits"),
    Row(_backoff, "waits"),
    Row(_coordinator_unreachable, "waits"),
    Row(_coordinator_pending, "waits"),
    Row(_coordinator_report, "waits"),
    Row(_store_pending, "waits"),
    Row(_workers_missing, "waits"),
)
