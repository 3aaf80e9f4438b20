"""What a plan consists of: actions, events, the new status, when to look again. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regroup_operator.api import TrainingJobStatus
from regroup_operator.observed import Blocker, Pod

MESSAGE_LIMIT = 1024
"""Characters of a message in the status."""


@dataclass(frozen=True)
class EnsureAccess:
    """The token's Secret, and the NetworkPolicy."""


@dataclass(frozen=True)
class EnsureService:
    """The Service, selecting the coordinator of this term and no other."""

    term: int


@dataclass(frozen=True)
class EnsureDisruptionBudget:
    """The PodDisruptionBudget: so many workers must stay."""

    fewest: int


@dataclass(frozen=True)
class CreateClaim:
    """The claim of volumeClaimTemplate."""


@dataclass(frozen=True)
class CreateCoordinator:
    """A coordinator pod; its term is in the status already."""

    term: int
    excluded_nodes: tuple[str, ...]


@dataclass(frozen=True)
class CreateStore:
    """The store pod of an attempt of launcher torchrun; its term is in the status already."""

    term: int
    excluded_nodes: tuple[str, ...]


@dataclass(frozen=True)
class CreateWorker:
    """A worker pod; its incarnation is used up in the status already."""

    index: int
    incarnation: int
    excluded_nodes: tuple[str, ...]


@dataclass(frozen=True)
class DeletePod:
    """Delete exactly this pod, by UID."""

    pod: Pod
    why: str
    force: bool = False
    """Without waiting for its kubelet."""


@dataclass(frozen=True)
class PutDesired:
    """Tell the coordinator what the spec says now."""


@dataclass(frozen=True)
class PostLost:
    """Tell the coordinator which members are gone."""

    members: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class DeleteJob:
    """Its time after the end is over."""


Action = (
    EnsureAccess
    | EnsureService
    | EnsureDisruptionBudget
    | CreateClaim
    | CreateCoordinator
    | CreateStore
    | CreateWorker
    | DeletePod
    | PutDesired
    | PostLost
    | DeleteJob
)


@dataclass(frozen=True)
class Event:
    """Something to tell the user."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    key: str
    """Tells apart events of one reason; the same key is told once."""


@dataclass(frozen=True)
class Plan:
    """What to do now: write the status, then act in this order, then tell the events."""

    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    look_again_seconds: float | None = None
    """None: when something happens."""
    follow: bool = False
    """Whether the coordinator is to be polled."""


@dataclass(frozen=True)
class Ending:
    """How the job ended."""

    complete: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Situation:
    """What the planner found, beyond what can be read off the observed objects."""

    blocker: Blocker | None = None
    suspension: Literal["no", "suspending", "suspended"] = "no"
    ending: Ending | None = None


@dataclass(frozen=True)
class Step:
    """What one part of the policy adds to the plan."""

    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
