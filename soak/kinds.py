"""The kinds of faults and of jobs that a soak draws from: two tables. Only the standard library."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FaultKind:
    """What can be done to a job, and how often it is drawn."""

    name: str
    weight: int
    seconds: tuple[float, float] = (0.0, 0.0)
    """Least and most time until it is undone; 0: it happens at once."""
    everywhere: bool = False
    """Whether all jobs of the cluster may feel it, not only the one that it is meant for."""
    halts: bool = False
    """Whether nobody can expect steps before it is undone."""
    refuses: bool = False
    """Whether the job's volume takes no files before it is undone."""
    charges: tuple[str, ...] = ()
    """The causes among application and hang that `status.restarts` may count it as, once each."""
    spares: tuple[str, ...] = ()
    """The kinds of jobs that it cannot strike."""


@dataclass(frozen=True)
class JobKind:
    """What can be trained, and how often it is drawn."""

    name: str
    weight: int
    copy_size: int | None
    """So many ranks in a row hold a whole copy of the state; None: only all ranks together do."""


APPLICATION, HANG = "application", "hang"
FAULTS = (
    FaultKind("pod-deleted", 4),
    FaultKind("pod-force-deleted", 4),
    FaultKind("rank-killed", 5, charges=(APPLICATION,)),
    FaultKind("agent-killed", 4),
    FaultKind("coordinator-killed", 4),
    FaultKind("two-within-200-ms", 3),
    FaultKind("whole-job-killed", 2),
    FaultKind("node-power-cut", 3, (10, 40), everywhere=True),
    FaultKind("all-nodes-power-cut", 1, (10, 40), everywhere=True, halts=True),
    FaultKind("node-frozen", 3, (1, 20), everywhere=True, charges=(HANG,)),
    FaultKind("node-partitioned", 3, (1, 20), everywhere=True),
    FaultKind("node-drained", 2, (5, 15)),
    FaultKind("coordinator-drained", 2, (5, 15)),
    FaultKind("overload", 1, (20, 40), everywhere=True, charges=(HANG,)),
    FaultKind("api-server-away", 2, (5, 30), everywhere=True),
    FaultKind("etcd-away", 1, (5, 20), everywhere=True),
    FaultKind("scheduler-away", 1, (5, 20), everywhere=True),
    FaultKind("controller-manager-away", 1, (5, 20), everywhere=True),
    FaultKind("operator-killed", 2, everywhere=True),
    FaultKind("volume-full", 3, (5, 30), refuses=True),
    FaultKind("volume-silent", 3, (5, 40), halts=True, refuses=True),
    FaultKind("volume-away", 1, (60, 150), halts=True, refuses=True),
    FaultKind("volume-errors", 2, (5, 30), halts=True, refuses=True),
    FaultKind("volume-slow", 2, (5, 40)),
    FaultKind("secret-deleted", 1, spares=("torchrun",)),  # it has no token
    FaultKind("service-deleted", 1),
    FaultKind("policy-deleted", 1),
    FaultKind("rank-out-of-memory", 2, charges=(APPLICATION,)),
    FaultKind("kubelet-restarted", 2, everywhere=True),
    FaultKind("containerd-restarted", 2, everywhere=True),
    FaultKind("volume-read-only", 2, (5, 30), refuses=True),
    FaultKind("sidecar-killed", 2),
    FaultKind("ephemeral-storage-full", 2),
    FaultKind("clock-wrong", 2, (5, 30)),
    FaultKind("image-missing", 2, (5, 30), everywhere=True),
    FaultKind("certificates-rotated", 1, everywhere=True),
)
_CHARGES = {kind.name: kind.charges for kind in FAULTS}
JOBS = (
    JobKind("ddp", 4, copy_size=1),
    JobKind("fsdp", 2, copy_size=None),
    JobKind("hsdp", 2, copy_size=2),
    JobKind("tensor", 1, copy_size=2),
    JobKind("session", 2, copy_size=1),
    JobKind("torchrun", 1, copy_size=None),
)


def may_be_counted(cause: str, faults: Iterable[str]) -> int:
    """How many of these faults, by kind, `status.restarts` may count as a cause."""
    return sum(cause in _CHARGES.get(fault, ()) for fault in faults)
