"""The PodDisruptionBudget of a job: how many workers a drain leaves it. Pure.

A drain evicts one worker and waits for its replacement before it evicts the next one. An evicted
worker costs no step, so that one may always be taken, also from a job of fixed size: a budget that
forbids every eviction would block the drain of its nodes for ever.
"""

from __future__ import annotations

from regroup_operator.api import names
from regroup_operator.api.resource import Object
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.decide.plan import Action, EnsureDisruptionBudget
from regroup_operator.observe.observed import Job, JobObject, Observed
from regroup_operator.render.pods import metadata
from regroup_trainer.protocol.job_status import Waiting


def fewest_workers(spec: TrainingJobSpec) -> int:
    """Workers that must stay: `minReplicas`, and one less than all of them at the most."""
    return min(spec.min_replicas, spec.replicas - 1)


def keep_budget(job: Job, observed: Observed, blocker: Waiting | None) -> tuple[Action, ...]:
    """Make or change the budget when there are workers and it differs from what it should be. No
    budget is the same as 0.
    """
    if blocker is not None or not observed.workers:
        return ()
    fewest = fewest_workers(job.spec)
    return () if (observed.disruption_budget or 0) == fewest else (EnsureDisruptionBudget(fewest),)


def disruption_budget(job: JobObject, fewest: int) -> Object:
    """The object. It holds a number, not a share: only the operator knows how many pods the job
    wants.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(job, names.disruption_budget(job.name)),
        "spec": {
            "minAvailable": fewest,
            "selector": {"matchLabels": names.labels(job.name, names.WORKER)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
