"""What a plan consists of: actions, events, the new status, when to reconcile again. Data only, and
how many events become one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.observe.observed import EndedWorkers, Pod
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.message import named

MESSAGE_LIMIT = 1024
"""Characters of a message in the status."""
REQUEUE_SECONDS = 2.0
"""The pause while something is suspected or waited for."""
RECOVERIES_KEPT = 10
"""Entries of status.recoveries."""
EVENTS_APART = 3
"""Pods or nodes that have an event each when one thing happens to them in a round: a job remembers
few events, and each costs a request.
"""


@dataclass(frozen=True)
class EnsureAccess:
    """Make the token's Secret, and make the NetworkPolicy or remove it."""


@dataclass(frozen=True)
class EnsureToken:
    """Make the token's Secret, in case that somebody has deleted it."""


@dataclass(frozen=True)
class EnsureService:
    """Make the Service select the coordinator, or store, of this term and no other."""

    term: int


@dataclass(frozen=True)
class SendAddress:
    """Send the Service's address to workers that look for the coordinator elsewhere."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True)
class EnsureDisruptionBudget:
    """Make the PodDisruptionBudget keep so many workers."""

    fewest: int


@dataclass(frozen=True)
class CreateClaim:
    """Make the claim of volumeClaimTemplate."""


@dataclass(frozen=True)
class CreateCoordinator:
    """Make a coordinator pod. Its term is in the status already."""

    term: int
    excluded_nodes: tuple[str, ...]


@dataclass(frozen=True)
class CreateStore:
    """Make the store pod of an attempt of launcher torchrun. Its term is in the status already."""

    term: int
    excluded_nodes: tuple[str, ...]


@dataclass(frozen=True)
class CreateWorker:
    """Make a worker pod. Its incarnation is used up in the status already."""

    index: int
    incarnation: int
    excluded_nodes: tuple[str, ...]


@dataclass(frozen=True)
class DeletePod:
    """Delete exactly this pod, by UID."""

    pod: Pod
    why: str
    grace_seconds: int | None = None
    """From SIGTERM to SIGKILL; 0: without waiting for its kubelet; None: as the pod says."""

    @property
    def force(self) -> bool:
        """Whether its kubelet is not waited for."""
        return self.grace_seconds == 0


@dataclass(frozen=True)
class PutDesired:
    """Send the coordinator what the spec asks for now."""


@dataclass(frozen=True)
class PostLost:
    """Report to the coordinator which members are gone."""

    members: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class DeleteJob:
    """Delete the TrainingJob itself: its time to live after the end is over."""


Action = (
    EnsureAccess
    | EnsureToken
    | EnsureService
    | SendAddress
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
    """A Kubernetes Event about the job."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    key: str
    """Distinguishes events of one reason. An event of the same reason and key is made once."""


def sum_up(events: Mapping[str, Event], what: str) -> tuple[Event, ...]:
    """The events of pods or nodes, by name, to which one thing happened in a round. Many are one:
    `what` says of their number what happened. The same ones give the same event again.
    """
    if len(events) <= EVENTS_APART:
        return tuple(events.values())
    first, count = next(iter(events.values())), len(events)
    text = f"{count} {what}: {named(events, count)}; the first: {first.message}"
    return (replace(first, message=text, key=f"{first.key}+{count - 1}"),)


NO_MESSAGE = "no reason was given"
"""Of an end that its coordinator does not explain, or whose message was removed from the status."""


@dataclass(frozen=True)
class JobOutcome:
    """How the job ended, as the conditions Complete and Failed show it."""

    complete: bool
    reason: str
    message: str


@dataclass(frozen=True)
class PlanContext:
    """What the planner found, beyond what can be derived from the observed objects alone."""

    blocker: Waiting | None = None
    """Why no pod may be made."""
    suspension: Literal["no", "suspending", "suspended"] = "no"
    outcome: JobOutcome | None = None
    hindrance: Waiting | None = None
    """Which pod does not start, or is unresponsive."""


@dataclass(frozen=True)
class Step:
    """What one part of the policy adds to the plan."""

    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True)
class DraftPlan:
    """A plan before its status is projected."""

    status: TrainingJobStatus
    """The former status with what must be remembered."""
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    context: PlanContext = PlanContext()
    requeue_after: float | None = None
    follow: bool = False


@dataclass(frozen=True)
class Plan:
    """What to do now: write the status, then execute the actions in order, then make the events."""

    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    """Seconds until the next reconcile. None: when something happens."""
    follow: bool = False
    """Whether the coordinator is to be followed."""
    waiting: Waiting | None = None
    """Why the job is not ready. None while it trains, and after its end."""
    hindrance: str | None = None
    """Reason of what is wrong although the job trains: the message says it from then on."""

    def needs_fresh_pods(self, former: TrainingJobStatus, ended: EndedWorkers) -> bool:
        """Whether it must not rest on pods from memory alone, which may lack one that lives. The
        status of a suspended job forgets what its pods were made of.
        """
        is_suspended = self.status.holds("Suspended") and not former.holds("Suspended")
        return is_suspended or any(_rests_on_absence(action, ended) for action in self.actions)


def _rests_on_absence(action: Action, ended: EndedWorkers) -> bool:
    """Whether a pod that was overlooked would make this action wrong. Nothing was made of a job
    before its first term and the first incarnations of its workers; of a worker that was seen to
    end, nothing is overlooked.
    """
    match action:
        case CreateWorker(index, incarnation, _):
            return incarnation > 1 and index not in ended.indexes
        case CreateCoordinator(term, _) | CreateStore(term, _):
            return term > 1
        case PostLost(members, _):
            return not ended.uids.issuperset(members)
        case DeletePod():
            return action.force
    return False
