"""What differs between launchers: one value for each, which `launcher_of` chooses. Data only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from regroup_operator.api.status import Phase, TrainingJobStatus
from regroup_operator.decide.plan import Action, JobOutcome, Step
from regroup_operator.observe.observed import AnyJob, Job, Observed
from regroup_trainer.protocol.job_status import Waiting

Keep = Callable[[Job, Observed, TrainingJobStatus, Waiting | None, datetime], Step]
"""Job, what was observed, the status so far, why no pod may be made, the time -> what to do."""


@dataclass(frozen=True)
class LauncherPolicy:
    """How the jobs of one launcher are kept and shown."""

    has_coordinator: bool
    """Whether a coordinator of ours reports on the job."""
    keep_leader: Keep
    """Keep the one pod that all workers connect to: the coordinator, or torchrun's store."""
    retain_leader: Callable[[Observed, TrainingJobStatus], tuple[Action, ...]]
    """Keep that pod reachable, and remove older ones, while no pod may be made."""
    keep_workers: Keep
    """Keep one live worker for each index."""
    find_outcome: Callable[[AnyJob, Observed], JobOutcome | None]
    """How the job ended, as its coordinator or its pods report; None while it has not."""
    is_training: Callable[[AnyJob, Observed], bool]
    """Whether it trains now."""
    group_fields: Callable[[AnyJob, Observed, TrainingJobStatus], dict[str, object]]
    """The fields of the status about the current process group."""
    phase: Callable[[Observed, TrainingJobStatus], Phase]
    """The phase of a job that is neither suspended nor over."""
    progress_message: Callable[[AnyJob, Observed, TrainingJobStatus], str]
    """What the job does now, in one sentence; never empty."""
