"""The status of a local job in the form that a cluster gives it. Pure."""

from __future__ import annotations

from regroup_operator.api.status import Phase, Restarts, TrainingJobStatus
from regroup_operator.decide.coordinator_projection import report_fields
from regroup_trainer.protocol.job_status import CoordinatorPhase, CoordinatorStatus, Outcome
from regroup_trainer.protocol.ledger import FAILURES

_PHASES: dict[CoordinatorPhase, Phase] = {
    "waiting": "Pending",
    "starting": "Starting",
    "running": "Running",
    "recovering": "Recovering",
    "resizing": "Resizing",
    "stopping": "Running",
    "suspended": "Suspended",
    "completed": "Succeeded",
    "failed": "Failed",
}
_ENDS: dict[str, Phase] = {"completed": "Succeeded", "failed": "Failed", "suspended": "Suspended"}


def job_status(
    report: CoordinatorStatus | None, outcome: Outcome | None, workers: int
) -> TrainingJobStatus:
    """What the coordinator reports, and how the run has ended; None while it has not."""
    status = TrainingJobStatus(phase="Starting", message="its processes start", replicas=workers)
    if report is not None:
        status = status.model_copy(update=_fields(report, status))
    if outcome is not None:
        end = {"phase": _ENDS[outcome.result], "message": outcome.message[:1024], "replicas": 0}
        return status.model_copy(update={**end, "ready_replicas": 0, "world_size": 0})
    if status.phase in _ENDS.values():  # its processes have not ended yet
        return status.model_copy(update={"phase": "Running"})
    return status


def _fields(report: CoordinatorStatus, status: TrainingJobStatus) -> dict[str, object]:
    counted = report.ledger.restarts
    causes = {cause: count for cause, count in counted.items() if cause in Restarts.model_fields}
    return {
        **report_fields(status, report),
        "phase": _PHASES[report.phase],
        "message": report.message[:1024],
        "world_size": report.world_size,
        "ready_replicas": sum(m.rank is not None and not m.lost for m in report.members),
        "rendezvous_generation": str(report.generation) if report.generation else None,
        "restarts": Restarts(**causes),
        "restart_count": sum(counted.get(cause, 0) for cause in FAILURES),
    }
