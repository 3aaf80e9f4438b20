"""What rounds read from memory."""

from __future__ import annotations

from dataclasses import dataclass

from regroup_operator.informer.job_pods import JobPods
from regroup_operator.informer.relabelled_pods import RelabelledPods
from regroup_operator.informer.remembered_objects import RememberedObjects


@dataclass(frozen=True)
class JobMemory:
    """The jobs, and their objects."""

    jobs: RememberedObjects
    pods: JobPods
    relabelled: RelabelledPods
    services: RememberedObjects
    policies: RememberedObjects
    budgets: RememberedObjects
