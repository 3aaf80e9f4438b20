"""The launchers, by the name in `spec.launcher`. Pure."""

from __future__ import annotations

from regroup_operator.decide.launcher_policy import LauncherPolicy
from regroup_operator.decide.regroup_launcher import REGROUP
from regroup_operator.decide.torchrun_launcher import TORCHRUN
from regroup_operator.observe.observed import JobObject

LAUNCHERS = {"regroup": REGROUP, "torchrun": TORCHRUN}


def launcher_of(job: JobObject) -> LauncherPolicy:
    """How this job is kept and shown."""
    return LAUNCHERS[job.launcher]
