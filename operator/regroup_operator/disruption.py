"""The PodDisruptionBudget of a job: how many workers a drain leaves it. Pure.

Whoever drains nodes one after the other waits for the replacement of a worker before the next one is asked to go. A
worker that is asked to go costs no step, so that one may always be taken, also from a job of fixed size: a budget that
lets nobody go would block the drain of its nodes for ever.
"""

from __future__ import annotations

from typing import Any

from regroup_operator import names
from regroup_operator.api import TrainingJobSpec
from regroup_operator.observed import Blocker, Job, Observed
from regroup_operator.plan import Action, EnsureDisruptionBudget
from regroup_operator.pods import metadata

Object = dict[str, Any]


def fewest_workers(spec: TrainingJobSpec) -> int:
    """Workers that must stay: `minReplicas`, and one less than all of them at the most."""
    return min(spec.min_replicas, spec.replicas - 1)


def keep_budget(job: Job, observed: Observed, blocker: Blocker | None) -> tuple[Action, ...]:
    """Make or change the budget when there are workers and it is not as it should be; none and 0 are the same."""
    if blocker is not None or job.spec is None or not observed.workers:
        return ()
    fewest = fewest_workers(job.spec)
    return () if (observed.disruption_budget or 0) == fewest else (EnsureDisruptionBudget(fewest),)


def disruption_budget(job: Job, fewest: int) -> Object:
    """The object. A number, not a share: nobody knows how many pods a job of ours wants but its operator."""
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
