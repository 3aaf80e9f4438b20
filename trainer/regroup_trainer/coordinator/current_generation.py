"""The current generation as the coordinator knows it: what its ranks reported, and how it ended.
Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Container
from dataclasses import dataclass, field

from regroup_trainer.coordinator.pace import Pace
from regroup_trainer.protocol.agent_messages import Hello, RankExit, StackFrame
from regroup_trainer.protocol.coordinator_messages import LeaveGeneration
from regroup_trainer.protocol.desired import LastKnown
from regroup_trainer.protocol.generation import (
    Decision,
    GenerationNumber,
    GenerationRecord,
    MemberRecord,
    SnapshotNumber,
)
from regroup_trainer.protocol.job_status import Stall
from regroup_trainer.protocol.ledger import Cause
from regroup_trainer.protocol.rank_messages import Busy, Finished, Progress, Restored, Retained
from regroup_trainer.snapshots.neighbours import SnapshotCopies

LOOK_SECONDS = 1.0
"""Between two looks at the volume."""
FIRST_SECONDS = 2.0
"""A generation that makes no step for so long after the first look has ended."""
QUIET_SECONDS = 10.0
"""So has one that was seen to make steps, and makes none for so long."""


@dataclass(frozen=True)
class GenerationEnd:
    """Why a generation ended, planned or not."""

    time: float
    """Monotonic time of the detection."""
    cause: Cause
    message: str
    place: MemberRecord | None = None
    """The member where it began."""
    exit: RankExit | None = None
    """The first rank that failed; None when a whole member was lost."""
    detect_seconds: float = 0.0
    """From the last sign of life to the detection."""


@dataclass(frozen=True)
class Failure(GenerationEnd):
    """An unplanned end, by its first cause."""

    stuck: int | None = None
    """The rank that hangs, if one stands out."""
    provisional: bool = False
    """Only ranks that lost a peer have reported so far: the first cause may still arrive."""


@dataclass(frozen=True)
class Transition:
    """A planned end: the ranks agree on the step after which they end the generation."""

    decision: Decision
    cause: Cause
    reason: str
    place: MemberRecord | None = None


@dataclass(frozen=True)
class LastCommit:
    """The highest step whose commit is part of the state."""

    step: int
    time: float
    """Wall clock of its commit."""
    step_seconds: float = 0.0
    """Mean time of a step in its generation."""
    world_size: int = 0
    """Ranks of that generation."""


@dataclass
class CurrentGeneration:
    """One generation, from its Begin to its end. Times are monotonic seconds."""

    record: GenerationRecord
    begun: float
    restored: dict[int, Restored] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    exits: dict[int, RankExit] = field(default_factory=dict)
    retained: dict[int, Retained] = field(default_factory=dict)
    """The state that parked ranks keep in memory for the next generation."""
    progress: Progress | None = None
    """The newest report of rank 0."""
    last_report: float = 0.0
    """When a rank last reported anything."""
    restored_at: float | None = None
    """When rank 0 reported that its state is in place."""
    first_commit: Progress | None = None
    """The first report of a committed step, by any rank."""
    first_commit_at: float | None = None
    """When it came."""
    left_at: float | None = None
    """When the last rank so far reported that it has left."""
    report_seconds: float = 0.0
    """Longest time between two reports of a program without a Session."""
    busy: dict[int, Busy] = field(default_factory=dict)
    """What ranks of such a program are busy with until their next step."""
    reported_busy: Busy | None = None
    """The one of these that an event has reported, since it takes long."""
    before: LastCommit | None = None
    """What was committed when the generation began."""
    previous_end: GenerationEnd | None = None
    """The end of the generation before it; None for the first."""
    adopted: bool = False
    """Whether another process of a coordinator has formed it."""
    unseen: LastKnown | None = None
    """What the operator knew, where a former coordinator has formed it and nobody learned of it."""
    decision: Decision | None = None
    """The planned end that rank 0 was asked for."""
    transition: Transition | None = None
    """The reason for that decision."""
    decided_at: float = 0.0
    last_activity: float = 0.0
    """When a rank last reported work that was done: a state in place, a step, a checkpoint. At
    first the begin.
    """
    diagnosed_at: float | None = None
    """When the ranks were asked for their stacks, since no work was done for too long."""
    frames: dict[int, StackFrame | None] = field(default_factory=dict)
    """Where the ranks are that have answered since then; None: the answer shows it not. Their whole
    stacks would take a hundred times the memory.
    """
    stall: Stall | None = None
    """What the status says of it while no work is done for long."""
    stragglers_checked_at: float = 0.0
    save_asked: tuple[str, int] | None = None
    """The request for a checkpoint that rank 0 was passed, and the last step that was known then.
    """
    snapshot: SnapshotNumber | None = None
    """The newest of its memory snapshots that was announced as complete."""
    failure: Failure | None = None
    leave_order: LeaveGeneration | None = None
    """What its ranks were sent after a failure; None: they were not asked to leave it."""
    leave_until: float = 0.0
    """When the last of them that was asked has to be out; then its agent kills it."""
    finalized: bool = False
    """The first cause of its failure is certain, and the restart is counted."""
    considered: object = None
    """What was known when a planned end was last considered."""
    pace: Pace = field(init=False)
    copies: SnapshotCopies = field(init=False)
    """Of its memory snapshots, as its members hold them now."""
    world_size: int = field(init=False)
    highest_index: int = field(init=False)
    """Of its members."""

    def __post_init__(self) -> None:
        members = self.record.members
        self.world_size = self.record.world_size
        self.highest_index = max((place.index for place in members), default=0)
        self.pace = Pace(self.world_size)
        self.copies = SnapshotCopies(self.number, members)
        self._positions = {place.member: position for position, place in enumerate(members)}
        self._first_ranks = [place.first_rank for place in members]
        self._inside = 0
        """Position of the first member of which a rank may not have left."""

    def forgive(self, seconds: float, now: float) -> None:
        """The coordinator was paused: what ranks reported in so many seconds is not known yet."""
        waited_since = max(self.last_report, self.decided_at)  # for the ranks to agree
        self.last_report = min(now, waited_since + seconds)
        self.last_activity = min(now, self.last_activity + seconds)
        self.leave_until += seconds
        self.pace.forgive(seconds)
        if self.diagnosed_at is not None:
            self.diagnosed_at = min(now, self.diagnosed_at + seconds)

    def position_of(self, member: str) -> int | None:
        """Where the member stands in the record; None if it is not part of this generation."""
        return self._positions.get(member)

    def place_of(self, member: str) -> MemberRecord | None:
        """The member's place, None if it is not part of this generation."""
        position = self._positions.get(member)
        return None if position is None else self.record.members[position]

    def place_of_rank(self, rank: int) -> MemberRecord | None:
        """The place of the member that runs this rank, None if there is no such rank."""
        position = bisect_right(self._first_ranks, rank) - 1
        place = self.record.members[position] if position >= 0 else None
        return place if place is not None and rank in place.own_ranks else None

    def rank_inside(self, here: Container[str]) -> int | None:
        """The first rank that has not left the generation, of the members in `here`; None: all have
        left. Ranks never enter it again, so none is looked at twice.
        """
        members = self.record.members
        while self._inside < len(members):
            place = members[self._inside]
            if place.member in here and (rank := self._first_inside(place)) is not None:
                return rank
            self._inside += 1
        return None

    def is_inside(self, member: str) -> bool:
        """Whether a rank of this member has not left the generation."""
        place = self.place_of(member)
        return place is not None and self._first_inside(place) is not None

    def on_enrolled(self, member: str) -> None:
        """A member is here, perhaps again. Its ranks were passed over while it was not."""
        if self.is_inside(member):
            self._inside = min(self._inside, self._positions[member])

    def _first_inside(self, place: MemberRecord) -> int | None:
        left = (self.retained, self.exits, self.finished)
        inside = (rank for rank in place.own_ranks if not any(rank in out for out in left))
        return next(inside, None)

    @property
    def number(self) -> GenerationNumber:
        """The generation's number."""
        return self.record.number

    @property
    def running(self) -> bool:
        """Whether it has committed a step."""
        return self.progress is not None

    @property
    def non_reporting(self) -> bool:
        """Whether it runs a user's program that has reported nothing, and may never do so."""
        return bool(self.record.desired.script) and not self.restored

    @property
    def unmanaged(self) -> bool:
        """Whether it runs a user's program without a Session, as far as is known: one that
        receives no decisions, even if it reports its steps.
        """
        first = next(iter(self.restored.values()), None)
        reported = first is None or first.restored_from == "Script"
        return bool(self.record.desired.script) and reported

    @property
    def total_steps(self) -> int:
        """The number of steps that a user's program reported; 0 where it reported none."""
        restored = self.restored.get(0)
        latest = self.progress.total_steps if self.progress else 0
        return latest or (restored.total_steps if restored else 0) or 0

    @property
    def ended(self) -> bool:
        """Whether all its ranks have finished by agreement."""
        return len(self.finished) == self.world_size

    @property
    def alive(self) -> bool:
        """Whether it trains, or is about to."""
        return self.failure is None and not self.ended

    @property
    def over(self) -> bool:
        """Whether the next generation may be formed."""
        return self.finalized or self.ended

    def step_seconds(self, report: Progress) -> float:
        """Mean time of a committed step as rank 0 reported it; 0 when unknown."""
        restored = self.restored.get(0)
        steps = report.step - restored.step if restored and report.rank == 0 else 0
        return report.seconds.get("step", 0.0) / steps if steps > 0 else 0.0

    def usual_step_seconds(self) -> float:
        """Mean time of its steps, or of those of the generation before; 0 when unknown."""
        own = self.step_seconds(self.progress) if self.progress else 0.0
        return own or (self.before.step_seconds if self.before else 0.0)


class FormerGeneration:
    """The newest generation that agents report to a coordinator that has just started."""

    def __init__(self) -> None:
        self.record: GenerationRecord | None = None
        """None: they report none."""
        self.missing: dict[str, MemberRecord] = {}
        """Its members that have not come back with it, in rank order."""
        self._places: dict[GenerationNumber, dict[str, MemberRecord]] = {}
        """Of each generation that an agent reports, by member."""

    @property
    def number(self) -> GenerationNumber | None:
        """Of this generation; None: they report none."""
        return self.record.number if self.record else None

    def note(self, hello: Hello) -> MemberRecord | None:
        """An agent sent its hello. Returns its place in the generation that it reports."""
        record = hello.record
        if record is None:
            return None
        if record.number not in self._places:
            self._places[record.number] = {place.member: place for place in record.members}
        places = self._places[record.number]
        if self.record is None or record.number > self.record.number:
            self.record, self.missing = record, places.copy()
        if record.number == self.record.number:
            self.missing.pop(hello.member, None)
        return places.get(hello.member)


class CutOffGeneration:
    """A generation that a former coordinator formed of members who are not here: the network cuts
    both off from this coordinator. They may train on, and only the volume shows it.
    """

    def __init__(self) -> None:
        self.number: GenerationNumber | None = None
        self._bytes = 0
        self._looked_at = -math.inf
        self._over_at = -math.inf

    def due(self, now: float) -> bool:
        """Whether it is time to look at the volume."""
        if now < self._looked_at + LOOK_SECONDS:
            return False
        self._looked_at = now
        return True

    def note(self, number: GenerationNumber, size: int, now: float) -> None:
        """The newest generation of a former term has a history of so many bytes."""
        if number != self.number:
            self._over_at = now + FIRST_SECONDS
        elif size > self._bytes:
            self._over_at = now + QUIET_SECONDS
        self.number, self._bytes = number, size

    def forgive(self, seconds: float) -> None:
        """The coordinator was paused, and could not look for so long."""
        self._over_at += seconds

    def trains_without(self, newest: GenerationNumber | None, now: float) -> bool:
        """Whether it may train, although the agents here report none that is newer than this."""
        if self.number is None or now >= self._over_at:
            return False
        return newest is None or newest < self.number
