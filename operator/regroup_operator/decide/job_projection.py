"""Projects what was observed into the status: counts, phase, message, conditions. Pure.

Only what can be derived again is computed here. What the planner must remember (terms,
incarnations, handled pods, suspects) it changes itself, and the projection passes it on.
"""

from __future__ import annotations

from datetime import datetime

from pydantic.alias_generators import to_camel

from regroup_operator.api import names
from regroup_operator.api.resource import Object
from regroup_operator.api.status import (
    NODES_REMEMBERED,
    PODS_HANDLED,
    Phase,
    TrainingJobStatus,
    WorkerStatus,
)
from regroup_operator.api.timestamps import format_time
from regroup_operator.decide.conditions import conditions
from regroup_operator.decide.coordinator_projection import (
    event_fields,
    report_fields,
    request_fields,
)
from regroup_operator.decide.job_account import account_fields, merge_ledgers
from regroup_operator.decide.launchers import launcher_of
from regroup_operator.decide.plan import MESSAGE_LIMIT, Plan, PlanContext
from regroup_operator.decide.waiting import JobView, find_hindrance, find_waiting, missing_worker
from regroup_operator.observe.observed import AnyJob, Observed, Pod
from regroup_trainer.protocol.job_status import CoordinatorStatus, MemberStatus

WORKERS_SHOWN = 64
THROTTLED = frozenset({"progress", "goodput", "ledger", "message", "coordinator_events"})
"""Fields that change with every step. A status that differs in these alone is written rarely."""
_THROTTLED_NAMES = frozenset(map(to_camel, THROTTLED))


def project(
    job: AnyJob,
    observed: Observed,
    remembered: TrainingJobStatus,
    context: PlanContext,
    now: datetime,
) -> TrainingJobStatus:
    """The status to write. `remembered` is the former one with what the planner must not forget."""
    report = observed.coordinator.status
    changes: dict[str, object] = {
        "observed_generation": job.generation,
        # The API server refuses a status with longer lists, and the job would stand still.
        "handled_pods": remembered.handled_pods[-PODS_HANDLED:],
        "suspected_nodes": remembered.suspected_nodes[-NODES_REMEMBERED:],
        "replicas": len([pod for pod in observed.workers if pod.alive]),
        "selector": names.selector(job.name, names.WORKER),
        "workers": _workers(observed, remembered),
        **account_fields(merge_ledgers(remembered, report)),
        **launcher_of(job).group_fields(job, observed, remembered),
        **report_fields(remembered, report),
        **event_fields(observed.coordinator),
        **request_fields(job, report, context, now),
    }
    if context.outcome is not None and remembered.completion_time is None:
        changes["completion_time"] = format_time(now)
    status = remembered.model_copy(update=changes)
    status = status.model_copy(update={"phase": phase_of(job, status, observed, context)})
    view = JobView(job, observed, status, context)
    status = status.model_copy(update={"message": message_of(view)[:MESSAGE_LIMIT]})
    return status.model_copy(update={"conditions": conditions(view, now)})


def phase_of(
    job: AnyJob, status: TrainingJobStatus, observed: Observed, context: PlanContext
) -> Phase:
    """One word for printing. `status` has the new group fields."""
    if context.outcome is not None:
        return "Succeeded" if context.outcome.complete else "Failed"
    if context.suspension == "suspended":
        return "Suspended"
    return launcher_of(job).phase(observed, status)


def message_of(view: JobView) -> str:
    """What the job does now, or why it is not ready."""
    if view.context.outcome is not None:
        return view.context.outcome.message
    if view.status.phase == "Running":
        doing = launcher_of(view.job).progress_message(view.job, view.observed, view.status)
        hindrance = find_hindrance(view)
        why = hindrance.message if hindrance else missing_worker(view)
        return f"{doing}; {why}" if why else doing
    waiting = find_waiting(view)
    return waiting.message if waiting else ""


def _workers(observed: Observed, remembered: TrainingJobStatus) -> tuple[WorkerStatus, ...]:
    """Without a report, running workers are shown as they last were: nobody says otherwise."""
    report, shown = observed.coordinator.status, observed.workers[:WORKERS_SHOWN]
    if report is not None:
        here = {m.member: m for m in report.members if not m.lost}
        return tuple(_worker(pod, report, here.get(pod.uid)) for pod in shown)
    former = {worker.pod: worker for worker in remembered.workers}
    return tuple(
        former[pod.name]
        if pod.alive and pod.phase == "Running" and _is_reported(former.get(pod.name))
        else _worker(pod)
        for pod in shown
    )


def _is_reported(worker: WorkerStatus | None) -> bool:
    return worker is not None and worker.state in ("Training", "Spare", "Warming")


def _worker(
    pod: Pod, report: CoordinatorStatus | None = None, member: MemberStatus | None = None
) -> WorkerStatus:
    training = member is not None and member.rank is not None and pod.phase == "Running"
    spare = member is not None and member.rank is None and report is not None and report.spares > 0
    contact = report is not None and pod.uid in (report.agents_in_contact or ())
    warming = contact and member is None and pod.phase == "Running"
    states = {
        "Terminating": pod.terminating,
        "Training": training,
        "Spare": spare,
        "Warming": warming,
    }
    state = next((name for name, holds in states.items() if holds), pod.phase)
    rank = member.rank if member else None
    return WorkerStatus(
        index=max(0, pod.index), pod=pod.name, node=pod.node, state=state, rank=rank
    )


def differs(
    one: TrainingJobStatus, other: TrainingJobStatus, *, ignoring: frozenset[str] = frozenset()
) -> bool:
    """Whether two statuses differ in other fields than those."""
    return _without(one, ignoring) != _without(other, ignoring)


def lasting(job: Object) -> Object:
    """A TrainingJob as the API server has it, without its version and those fields."""
    metadata = {k: v for k, v in job["metadata"].items() if k != "resourceVersion"}
    status = {k: v for k, v in job.get("status", {}).items() if k not in _THROTTLED_NAMES}
    return {**job, "metadata": metadata, "status": status}


def is_steady(former: TrainingJobStatus, decided: Plan) -> bool:
    """Whether a plan does nothing but write how far a job has come. What hinders a job, of which
    the message tells, is seen at its pods.
    """
    hinders = decided.hindrance is not None
    is_idle = not (decided.actions or decided.events or hinders)
    return is_idle and not differs(former, decided.status, ignoring=THROTTLED)


def _without(status: TrainingJobStatus, ignored: frozenset[str]) -> dict[str, object]:
    return {name: value for name, value in status if name not in ignored}
