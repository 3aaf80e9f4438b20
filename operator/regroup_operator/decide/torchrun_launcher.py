"""Jobs of launcher torchrun, as far as their pods show: only the script knows steps, checkpoints
and goodput. Pure.
"""

from __future__ import annotations

from regroup_operator.api import names
from regroup_operator.api.status import Phase, TrainingJobStatus
from regroup_operator.decide.attempt import find_end, read_attempt, trains
from regroup_operator.decide.launcher_policy import LauncherPolicy
from regroup_operator.decide.plan import JobOutcome
from regroup_operator.decide.torchrun_losses import running_ranges
from regroup_operator.decide.torchrun_staffing import keep_agents, keep_store, retain_store
from regroup_operator.observe.observed import AnyJob, Job, Observed
from regroup_operator.render.pods import ranks_per_worker
from regroup_operator.render.torchrun_commands import rendezvous_generation


def find_outcome(job: AnyJob, observed: Observed) -> JobOutcome | None:
    """How the attempt ended, when that ends the job."""
    return find_end(job, observed) if isinstance(job, Job) else None


def is_training(job: AnyJob, observed: Observed) -> bool:
    """Whether enough workers of the current attempt run."""
    return isinstance(job, Job) and trains(job, observed, job.status.coordinator_term)


def group_fields(job: AnyJob, observed: Observed, status: TrainingJobStatus) -> dict[str, object]:
    """Workers that run, and their ranks; nothing while the spec is invalid: losses of that time are
    counted once it is valid.
    """
    if not isinstance(job, Job):
        return {}
    running = len(read_attempt(observed, status.coordinator_term).running)
    remembered = {"running_workers": running_ranges(job, observed, status)}
    if not trains(job, observed, status.coordinator_term):
        return {**remembered, "ready_replicas": 0, "world_size": 0}
    return {
        **remembered,
        "ready_replicas": running,
        "world_size": running * ranks_per_worker(job.spec),
        "rendezvous_generation": rendezvous_generation(status.coordinator_term),
    }


def phase(observed: Observed, status: TrainingJobStatus) -> Phase:
    """The phase that the pods show. `status` has the new group fields."""
    if status.ready_replicas:
        return "Running"
    if status.rendezvous_generation is not None:
        return "Recovering"
    attempt = read_attempt(observed, status.coordinator_term)
    has_store = attempt.store is not None and attempt.store.phase == "Running"
    return "Starting" if attempt.running or has_store else "Pending"


def progress_message(job: AnyJob, observed: Observed, status: TrainingJobStatus) -> str:
    """How many workers run, or what is missing."""
    if status.ready_replicas:
        running = f"{status.ready_replicas} workers, {status.world_size} ranks"
        return f"torchrun runs {running} (see their logs for the progress)"
    attempt = read_attempt(observed, status.coordinator_term)
    if attempt.store is None or attempt.store.phase != "Running":
        pod = names.store(job.name, status.coordinator_term)
        return f"waiting for store pod {pod} (see kubectl describe pod {pod})"
    fewest = max(1, job.size.min_replicas)
    late = next((pod.name for pod in attempt.live if pod.phase == "Pending"), None)
    advice = f" (see kubectl describe pod {late})" if late else ""
    return f"waiting for workers: {len(attempt.running)} run, at least {fewest} are needed{advice}"


TORCHRUN = LauncherPolicy(
    has_coordinator=False,
    keep_leader=keep_store,
    retain_leader=retain_store,
    keep_workers=keep_agents,
    find_outcome=find_outcome,
    is_training=is_training,
    group_fields=group_fields,
    phase=phase,
    progress_message=progress_message,
)
