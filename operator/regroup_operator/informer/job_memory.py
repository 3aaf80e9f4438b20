"""What rounds read from memory."""

from __future__ import annotations

from dataclasses import dataclass

from regroup_operator.informer.job_pods import JobPods
from regroup_operator.informer.training_jobs import TrainingJobs


@dataclass(frozen=True)
class JobMemory:
    """The jobs, and their objects."""

    jobs: TrainingJobs
    pods: JobPods
