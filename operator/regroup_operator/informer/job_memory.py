"""What rounds read from memory."""

from __future__ import annotations

from dataclasses import dataclass

from regroup_operator.informer.job_pods import JobPods
from regroup_operator.informer.remembered_objects import RememberedObjects
from regroup_operator.informer.taken_pods import TakenPods
from regroup_operator.informer.worker_ends import WorkerEnds


@dataclass(frozen=True)
class JobMemory:
    """The jobs, and their objects."""

    jobs: RememberedObjects
    pods: JobPods
    taken_pods: TakenPods
    worker_ends: WorkerEnds
    services: RememberedObjects
    policies: RememberedObjects
    budgets: RememberedObjects
