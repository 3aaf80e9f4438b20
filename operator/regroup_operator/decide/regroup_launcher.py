"""Jobs of our own launcher, as their coordinators report them. Pure."""

from __future__ import annotations

import re

from regroup_operator.api import names
from regroup_operator.api.status import Phase, TrainingJobStatus
from regroup_operator.decide.launcher_policy import LauncherPolicy
from regroup_operator.decide.plan import NO_MESSAGE, JobOutcome
from regroup_operator.decide.staffing import keep_workers
from regroup_operator.decide.succession import keep_coordinator, retain_coordinator
from regroup_operator.observe.observed import AnyJob, Observed, Pod
from regroup_trainer.protocol.job_status import CoordinatorPhase

_PHASES: dict[CoordinatorPhase, Phase] = {
    "starting": "Starting",
    "running": "Running",
    "recovering": "Recovering",
    "resizing": "Resizing",
    "stopping": "Resizing",
    "suspended": "Resizing",
    "completed": "Running",
    "failed": "Recovering",
}
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,63}", re.ASCII)
"""A reason as conditions have it. A coordinator may give any text."""


def find_outcome(_job: AnyJob, observed: Observed) -> JobOutcome | None:
    """The outcome that the coordinator reports."""
    report = observed.coordinator.status
    outcome = report.outcome if report else None
    if outcome is None or outcome.result == "suspended":
        return None
    message = outcome.message or NO_MESSAGE
    if outcome.result == "completed":
        return JobOutcome(True, "Completed", message)
    is_reason = _REASON.fullmatch(outcome.reason)
    return JobOutcome(False, outcome.reason if is_reason else "TrainingFailed", message)


def is_training(_job: AnyJob, observed: Observed) -> bool:
    """Whether the coordinator reports that it trains."""
    report = observed.coordinator.status
    return report is not None and report.phase == "running"


def group_fields(_job: AnyJob, observed: Observed, _status: TrainingJobStatus) -> dict[str, object]:
    """The group that the coordinator reports. Without a report the ranks train on as before, as
    long as one of their pods lives.
    """
    report = observed.coordinator.status
    live = {pod.uid for pod in observed.workers if pod.alive}
    if report is None:
        return {} if live else {"ready_replicas": 0, "ready_spares": 0, "world_size": 0}
    ranked = [m for m in report.members if m.rank is not None and not m.lost and m.member in live]
    generation = {"rendezvous_generation": str(report.generation)} if report.generation else {}
    return {
        "ready_replicas": len(ranked),
        "ready_spares": report.spares,
        "world_size": report.world_size,
        **generation,
    }


def phase(observed: Observed, status: TrainingJobStatus) -> Phase:
    """The coordinator's phase; without a report the former one, as long as there are workers."""
    report = observed.coordinator.status
    if report is not None:
        has_trained = status.rendezvous_generation is not None
        if report.phase == "waiting":
            return "Recovering" if has_trained else "Pending"
        return _PHASES[report.phase]
    if status.phase in (None, "Suspended") or not status.replicas:
        return "Pending"
    return status.phase


def progress_message(job: AnyJob, observed: Observed, status: TrainingJobStatus) -> str:
    """What the coordinator reports, or why it does not."""
    view = observed.coordinator
    if view.status is not None:
        return view.status.message or f"the coordinator is {view.status.phase}"
    name = names.coordinator(job.name, status.coordinator_term)
    pod = next((pod for pod in observed.coordinators if pod.name == name), None)
    waits = _coordinator_waits(name, pod, view.error)
    works = status.phase == "Running" and any(pod.alive for pod in observed.workers)
    return f"{waits}; the workers go on meanwhile" if works else waits


def _coordinator_waits(name: str, pod: Pod | None, error: str) -> str:
    """What the coordinator's pod does while it does not report, and where to look."""
    where = f"coordinator pod {name}" + (f" on node {pod.node}" if pod and pod.node else "")
    if error:
        return f"{where} does not answer: {error} (see kubectl logs {name})"
    if pod is None:
        return f"{where} is not made yet"
    if pod.terminating:
        return f"{where} is being deleted"
    if pod.phase == "Running":
        return f"{where} runs, and has not reported yet (see kubectl logs {name})"
    doing = "starts" if pod.node else "waits for a node"
    return f"{where} {doing} (see kubectl describe pod {name})"


REGROUP = LauncherPolicy(
    has_coordinator=True,
    keep_leader=keep_coordinator,
    retain_leader=retain_coordinator,
    keep_workers=keep_workers,
    find_outcome=find_outcome,
    is_training=is_training,
    group_fields=group_fields,
    phase=phase,
    progress_message=progress_message,
)
