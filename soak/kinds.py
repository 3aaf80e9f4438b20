"""The kinds of faults and of jobs that a soak draws from: two tables. Only the standard library."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FaultKind:
    """What can be done to a job, and how often it is drawn."""

    name: str
    weight: int
    seconds: tuple[float, float] = (0.0, 0.0)
    """Least and most time until it is undone; 0: it happens at once."""


@dataclass(frozen=True)
class JobKind:
    """What can be trained, and how often it is drawn."""

    name: str
    weight: int
    copy_size: int | None
    """So many ranks in a row hold a whole copy of the state; None: only all ranks together do."""


FAULTS = (
    FaultKind("pod-deleted", 3),
    FaultKind("pod-force-deleted", 3),
    FaultKind("rank-killed", 4),
    FaultKind("agent-killed", 3),
    FaultKind("coordinator-killed", 3),
    FaultKind("two-within-200-ms", 3),
    FaultKind("node-power-cut", 3, (10, 40)),
    FaultKind("node-frozen", 3, (1, 20)),
    FaultKind("node-partitioned", 3, (1, 20)),
    FaultKind("node-drained", 2, (5, 15)),
    FaultKind("coordinator-drained", 2, (5, 15)),
    FaultKind("api-server-away", 2, (5, 30)),
    FaultKind("operator-killed", 2),
    FaultKind("volume-full", 3, (5, 30)),
    FaultKind("volume-silent", 3, (5, 40)),
    FaultKind("volume-slow", 2, (5, 40)),
    FaultKind("secret-deleted", 1),
    FaultKind("service-deleted", 1),
    FaultKind("policy-deleted", 1),
    FaultKind("rank-out-of-memory", 2),
    FaultKind("kubelet-restarted", 2),
    FaultKind("containerd-restarted", 2),
    FaultKind("volume-read-only", 2, (5, 30)),
    FaultKind("sidecar-killed", 2),
    FaultKind("ephemeral-storage-full", 2),
    FaultKind("clock-wrong", 2, (5, 30)),
    FaultKind("image-missing", 2, (5, 30)),
    FaultKind("certificates-rotated", 1),
)
JOBS = (
    JobKind("ddp", 4, copy_size=1),
    JobKind("fsdp", 2, copy_size=None),
    JobKind("hsdp", 2, copy_size=2),
    JobKind("tensor", 1, copy_size=2),
    JobKind("session", 2, copy_size=1),
    JobKind("torchrun", 1, copy_size=None),
)
