"""What a coordinator tells of its job, to whoever asks: the operator, the local mode, `kubectl regroup`."""

from __future__ import annotations

from typing import Literal

from regroup_trainer.contract import (
    PROTOCOL_VERSION,
    Cause,
    CheckpointSaved,
    Evaluated,
    GenerationNumber,
    Ledger,
    Message,
    Name,
    Progress,
    Rung,
    Text,
)


class MemberStatus(Message):
    """A connected, or just lost, member."""

    member: Name
    index: int
    pod: Name
    node: Name
    rank: int | None
    """Its first rank in the current generation."""
    step: int
    lost: Text = ""
    """Why it was declared lost; empty while it is here. Kept until a replacement of the same index says hello."""


class Straggler(Message):
    """A rank that the others wait for in every step."""

    rank: int
    member: Name
    pod: Name
    node: Name
    percent: int
    """How much longer it computes than the median rank, as it was found."""


class Recovery(Message):
    """One unplanned or planned change of the world, from the loss to the first step after it."""

    sequence: int
    """Unique and rising within a term, also over a restart of its coordinator: the n of the following generation."""
    time: float
    """Wall clock of the detection."""
    cause: Cause
    rung: Rung
    generation: GenerationNumber
    """The generation that followed."""
    member: Name = ""
    pod: Name = ""
    node: Name = ""
    exit_code: int | None = None
    message: Text = ""
    lost_steps: int | None = None
    """None until the state is restored."""
    resumed_from_step: int | None = None
    detect_seconds: float = 0.0
    """From the last sign of life to the detection; 0 when the loss announced itself."""
    down_seconds: float | None = None
    """From the last committed step before it to the first after it; None until then."""
    world_before: int
    world_after: int


class JobEvent(Message):
    """Something to tell the user; becomes a Kubernetes Event. The newest are kept."""

    sequence: int
    time: float
    type: Literal["Normal", "Warning"]
    reason: Name
    message: Text


class Verdict(Message):
    """How the job ended."""

    outcome: Literal["completed", "failed", "suspended"]
    message: Text
    exit_code: int = 0


CoordinatorPhase = Literal[
    "waiting", "starting", "running", "recovering", "resizing", "stopping", "suspended", "completed", "failed"
]


class CoordinatorStatus(Message):
    """Answer of GET /v1/status?after=SEQUENCE&wait=SECONDS: returns at once when `sequence` is above `after`."""

    protocol: int = PROTOCOL_VERSION
    term: int
    sequence: int
    """Raised by every change."""
    revision: int
    """Of the Desired in force."""
    phase: CoordinatorPhase
    message: Text
    generation: GenerationNumber | None = None
    world_size: int = 0
    spares: int = 0
    """Warm workers without a rank, beside a full world."""
    members: tuple[MemberStatus, ...] = ()
    progress: Progress | None = None
    total_steps: int = 0
    evaluation: Evaluated | None = None
    checkpoint: CheckpointSaved | None = None
    ledger: Ledger = Ledger()
    recoveries: tuple[Recovery, ...] = ()
    """The newest ten."""
    stragglers: tuple[Straggler, ...] = ()
    """Of the current world, the slowest first."""
    events: tuple[JobEvent, ...] = ()
    """The newest fifty."""
    verdict: Verdict | None = None
