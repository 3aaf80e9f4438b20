"""What the pods of a torchrun job tell for the status; steps, checkpoints, goodput are its script's matter. Pure."""

from __future__ import annotations

from regroup_operator.api import Phase, TrainingJobStatus
from regroup_operator.attempt import read_attempt, trains
from regroup_operator.observed import Job, Observed
from regroup_operator.pods import ranks_per_worker
from regroup_operator.torchrun import world_generation


def world(job: Job, observed: Observed, status: TrainingJobStatus) -> dict[str, object]:
    """Workers that run, and their ranks."""
    if job.spec is None:
        return {}
    running = len(read_attempt(observed, status.coordinator_term).running)
    if not trains(job, observed, status.coordinator_term):
        return {"ready_replicas": 0, "world_size": 0}
    return {
        "ready_replicas": running,
        "world_size": running * ranks_per_worker(job.spec),
        "world_generation": world_generation(status.coordinator_term),
    }


def phase(status: TrainingJobStatus, observed: Observed) -> Phase:
    """One word; `status` has the new world."""
    if status.ready_replicas:
        return "Running"
    if status.world_generation is not None:
        return "Recovering"
    attempt = read_attempt(observed, status.coordinator_term)
    return "Starting" if attempt.running or (attempt.store and attempt.store.phase == "Running") else "Pending"


def message(job: Job, status: TrainingJobStatus, observed: Observed) -> str:
    """What it does now."""
    attempt = read_attempt(observed, status.coordinator_term)
    if status.ready_replicas:
        running = f"{status.ready_replicas} workers, {status.world_size} ranks"
        return f"torchrun runs {running}; their logs tell how far they are"
    if attempt.store is None or attempt.store.phase != "Running":
        return "waiting for the store's pod"
    fewest = job.spec.min_replicas if job.spec else 1
    return f"waiting for workers: {len(attempt.running)} run, at least {fewest} are needed"
