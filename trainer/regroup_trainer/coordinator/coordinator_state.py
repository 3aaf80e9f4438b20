"""What a coordinator knows, and the few changes that several of its decisions share. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from regroup_trainer.coordinator.accounting import Account, DetectionTimes, Recoveries
from regroup_trainer.coordinator.current_generation import (
    CurrentGeneration,
    CutOffGeneration,
    Failure,
    FormerGeneration,
    LastCommit,
)
from regroup_trainer.coordinator.effects import Close, Effect, Send
from regroup_trainer.coordinator.journal import Journal
from regroup_trainer.coordinator.membership import Member, Members
from regroup_trainer.coordinator.restart_budget import (
    PROVEN_SECONDS,
    StartFailures,
    UnchargedEnds,
)
from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.coordinator_messages import CoordinatorMessage, Exit
from regroup_trainer.protocol.desired import Desired, LastKnown
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import Outcome, RequestAnswer, Waiting
from regroup_trainer.protocol.ledger import FAILURES, Cause
from regroup_trainer.protocol.rank_messages import (
    CheckpointSaved,
    Evaluated,
    Progress,
    VolumeProblem,
)
from regroup_trainer.snapshots.neighbours import ShardHolders


@dataclass
class VolumeWatch:
    """What is wrong with the volume, as ranks and this process see it."""

    for_ranks: VolumeProblem | None = None
    for_numbers: VolumeProblem | None = None
    """What keeps this process from reserving generation numbers."""
    announced: bool = False
    """Whether the last event names a problem."""

    @property
    def problem(self) -> VolumeProblem | None:
        """The one to show: that of the ranks, whose states wait for the volume."""
        return self.for_ranks or self.for_numbers


@dataclass
class Departures:
    """What is known of whom to release, so that not all are looked at for each message."""

    known: object = None
    """What was known when all members were last looked at."""
    kept: dict[str, None] = field(default_factory=dict)
    """Members that would go, but for the snapshots that they hold."""
    kept_for: object = None
    """On what that depended when these were last looked at."""
    holders: ShardHolders | None = None
    """Who holds what now; None where nobody has asked for it since the last generation failed."""


def _commit_of(known: LastKnown | None) -> LastCommit | None:
    return LastCommit(known.step, known.time) if known else None


def _number_of(hello: Hello) -> GenerationNumber | None:
    """Of the generation that an agent reports; None: it reports none."""
    return hello.record.number if hello.record else None


def _pending(request: str, answer: RequestAnswer | None) -> str:
    return "" if answer is not None and answer.request == request else request


class State:
    """The state of one coordinator process. Times are monotonic seconds."""

    outcome: Outcome | None = None
    waiting: Waiting | None = None
    """Why no generation trains; None while one does."""
    checkpoint_answer: RequestAnswer | None = None
    """To the newest request that is not pending any more."""
    restart_answer: RequestAnswer | None = None
    """The same of a request for a restart."""
    restarting = ""
    """The request for a restart because of which a generation was ended."""
    restart_step_found: tuple[str, bool | None] = ("", None)
    """A request for a restart, and whether the volume has its checkpoint; None: not known yet."""
    started = False
    """Whether the state of any generation has ever been in place."""
    read_until = -math.inf
    """Hellos and signs of life that had arrived by then are known; a later one may wait unread."""
    reported_until = -math.inf
    """What ranks had reported by then is known; a later report may have arrived unread."""
    agents_give_names = True
    """Whether all agents that import torch give their names; those of release 0.1 do not."""

    def __init__(
        self, term: int, node: str, desired: Desired, now: float, wall_offset: float
    ) -> None:
        self._wall_offset = wall_offset
        self.term = term
        self.node = node
        self.desired = desired
        self.members = Members()
        self.unknown_members: dict[str, float] = {}
        """Name -> last heartbeat of agents that are lost, import torch, or are yet to connect."""
        self.importing: dict[int, float] = {}
        """Index -> when its worker last reported that it imports torch."""
        self.lost_members: dict[int, tuple[Hello, str]] = {}
        """Index -> the member lost there and why, until a replacement says hello."""
        self.ended_pods: set[str] = set()
        """Members whose pods have ended, as the operator reports: a process that lives on in such a
        pod is never a member again.
        """
        self.replaced: set[str] = set()
        """Members whose place another has taken: they are released when they return."""
        self._former: FormerGeneration | None = None
        self.cut_off = CutOffGeneration()
        self.current: CurrentGeneration | None = None
        self.last_known = desired.last_known
        """What the operator knew when this process started; None where nothing was interrupted."""
        self.committed: LastCommit | None = _commit_of(desired.last_known)
        self.progress: Progress | None = None
        self.checkpoint: CheckpointSaved | None = None
        self.resumed: list[tuple[GenerationNumber, int]] = []
        """Generations and the steps from which they resumed, as far as this process knows."""
        self.failed_save = ""
        """What went wrong with the last save; empty when it succeeded."""
        self.volume = VolumeWatch()
        self.evaluation: Evaluated | None = None
        self.detections: dict[Cause, DetectionTimes] = {
            cause: DetectionTimes() for cause in FAILURES
        }
        """Of failures, and of all members that are lost unplanned."""
        self.start_failures = StartFailures.resume(term, desired.failed_starts, wall_offset)
        self.uncharged_ends = UnchargedEnds()
        self.account = Account(desired.seed, now)
        self.recoveries = Recoveries()
        self.journal = Journal(self.wall(now))
        self.departures = Departures()
        self._effects: list[Effect] = []

    @property
    def former(self) -> FormerGeneration:
        """What a coordinator that has just started may adopt. It is looked for again only when
        somebody asks, so once for all members that are lost together.
        """
        if self._former is None:
            self._former = FormerGeneration()
            for member in self.members.values():
                member.place = self._former.note(member.hello)
        return self._former

    @property
    def pending_request(self) -> str:
        """The request for a checkpoint that has no answer yet; empty: there is none."""
        return _pending(self.desired.checkpoint_request, self.checkpoint_answer)

    @property
    def pending_restart(self) -> str:
        """The same of a request for a restart."""
        return _pending(self.desired.restart_request, self.restart_answer)

    @property
    def restarts_now(self) -> bool:
        """Whether the next generation begins a restart that somebody asks for."""
        return bool(self.restarting) and self.restarting == self.pending_restart

    def wall(self, now: float) -> float:
        """Wall clock at monotonic time `now`."""
        return now + self._wall_offset

    def book(self, now: float) -> None:
        """Book the time that no rank reports: without a generation, in one whose program reports no
        steps, and in one that stands still. It may last long, and end with the job or this process.
        """
        current = self.current
        if current is None or current.over:
            self.book_wait(now)
        elif current.alive and current.stall is not None:
            self.account.stand_still(now, self.members.ranks)
        elif current.alive:
            self._book_program(current, now)

    def book_wait(self, now: float) -> None:
        """Book the time without a generation. Call it too where one ends, and with it the job."""
        if self.current is not None:
            self._book_program(self.current, now)
        phase = "pending" if self.current is None else "idle"
        self.account.spend(phase, now, self.members.ranks)

    def _book_program(self, current: CurrentGeneration, now: float) -> None:
        """Book the time of a program that reports no steps as steps: nobody else knows what it
        does.

        One that reports its first step soon has started up until then, and one that fails before
        that has not worked. So nothing is booked until it is clear.
        """
        has_session = self.resumed or current.record.restored_from in ("Peers", "Snapshot")
        if not current.non_reporting or has_session or self.volume.for_ranks is not None:
            return
        until = now
        if current.failure is not None:
            until = current.failure.time
        elif current.ended and current.left_at is not None:
            until = current.left_at
        if current.adopted or current.ended or until - current.begun >= PROVEN_SECONDS:
            self.account.spend("step", until, self.members.ranks, current.world_size)

    def emit(
        self, now: float, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> None:
        """Keep an event."""
        self.journal.emit(self.wall(now), reason, message, kind)

    def send(self, name: str, message: CoordinatorMessage) -> None:
        """Send a message to an agent."""
        self._effects.append(Send(name, message))

    def require(self, effect: Effect) -> None:
        """Have the server do something."""
        self._effects.append(effect)

    def drain(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def conclude(self, outcome: Outcome) -> None:
        """The job has ended: all agents exit."""
        self.outcome = outcome
        for name in self.members:
            self.send(name, Exit(code=outcome.exit_code, reason=outcome.message))
        self.members.clear()

    def enroll(self, member: Member) -> None:
        """It sent its hello, and takes part from now on."""
        known = self.members.get(member.name)
        self.members.add(member)
        if self.current is not None:
            self.current.on_enrolled(member.name)
            self.current.copies.hold(member.name, member.snapshots)
            return
        if known is not None and _number_of(known.hello) not in (None, _number_of(member.hello)):
            self._former = None
        member.place = self.former.note(member.hello)

    def remove(self, name: str) -> Member | None:
        """Forget a member; None where there is none of that name."""
        member = self.members.remove(name)
        if self.current is not None:
            self.current.copies.hold(name, ())
        elif member is not None and member.hello.record is not None:
            self._former = None
        return member

    def lose(self, member: Member, why: str, now: float, since: float | None = None) -> None:
        """Remove a member that is gone `since` then, by default its last sign of life. The current
        generation fails if it needs that member.
        """
        if self.remove(member.name) is None:
            return
        detect_seconds = max(0.0, now - (member.last_sign if since is None else since))
        if not self._is_to_go(member):
            self.detections["infrastructure"].add(detect_seconds)
        self.require(Close(member.name))
        self.lost_members[member.hello.index] = (member.hello, why)
        who = f"worker {member.hello.pod} on {member.hello.node}"
        self.journal.note_loss(member.hello.pod, f"{who} is lost: {why}")
        current = self.current
        place = current.place_of(member.name) if current else None
        if current is None or place is None or current.over:
            return
        known = current.failure
        if known is None or known.provisional or known.exit is not None:
            cause: Cause = "preemption" if member.leaving else "infrastructure"
            message = f"{who} is lost: {why}"
            current.failure = Failure(now, cause, message, place, detect_seconds=detect_seconds)

    def _is_to_go(self, member: Member) -> bool:
        """Whether its end is planned: a drain, a smaller job, or a suspension."""
        surplus = member.hello.index >= self.desired.workers
        return member.leaving is not None or surplus or self.desired.suspend

    def lose_disconnected(self, now: float) -> None:
        """Ranks lost a peer: every member whose connection is closed is that peer, and lost."""
        for member in self.members.disconnected():
            self.lose(member, "its connection closed and its peers lost it", now)
