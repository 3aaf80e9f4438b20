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
    has_whole_copies: bool
    """Whether each group of ranks that may survive alone has the whole state."""


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
)
JOBS = (
    JobKind("ddp", 4, has_whole_copies=True),
    JobKind("fsdp", 2, has_whole_copies=False),
    JobKind("hsdp", 2, has_whole_copies=True),
    JobKind("tensor", 1, has_whole_copies=True),
    JobKind("session", 2, has_whole_copies=True),
    JobKind("torchrun", 1, has_whole_copies=False),
)
