"""The current generation as the coordinator sees it: what its ranks have told, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from regroup_trainer.contract import (
    Cause,
    Decision,
    Finished,
    GenerationNumber,
    GenerationRecord,
    Kept,
    MemberRecord,
    Progress,
    RankExit,
    Restored,
    SnapshotNumber,
    Stack,
)
from regroup_trainer.coordinator.pace import Pace


@dataclass(frozen=True)
class Break:
    """Why a world ended, told by its first cause."""

    time: float
    """Monotonic time of the detection."""
    cause: Cause
    message: str
    place: MemberRecord | None = None
    """Where it began."""
    exit: RankExit | None = None
    """The first failing rank; None when a whole member was lost."""
    detect_seconds: float = 0.0
    stuck: int | None = None
    """The rank that hangs, where one stands out."""
    provisional: bool = False
    """Only `peer` exits so far: the real cause may still be heard."""


@dataclass(frozen=True)
class Change:
    """An agreed end of a world."""

    decision: Decision
    cause: Cause
    reason: str
    place: MemberRecord | None = None


@dataclass(frozen=True)
class LastCommit:
    """The highest committed step that the state stands on."""

    step: int
    time: float
    """Wall clock of its commit."""
    step_seconds: float = 0.0
    """Mean time of a step in its generation."""


@dataclass
class World:
    """One generation, from its Begin to its end. Times are monotonic seconds."""

    record: GenerationRecord
    begun: float
    restored: dict[int, Restored] = field(default_factory=dict)
    finished: dict[int, Finished] = field(default_factory=dict)
    exits: dict[int, RankExit] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    """What ranks keep in their memory, which have left this world and wait for the next."""
    progress: Progress | None = None
    """The newest of rank 0."""
    heard: float = 0.0
    """When a rank last told anything."""
    first_commit: Progress | None = None
    """The first report of a committed step, of any rank."""
    before: LastCommit | None = None
    """What was committed when it began."""
    follows: Break | None = None
    """The end of the world before it; None for the first."""
    decision: Decision | None = None
    """The planned end that was asked for."""
    change: Change | None = None
    """Why."""
    decided: float = 0.0
    moved: float = 0.0
    """When it last told of something done (a state in place, a step, a checkpoint ...); at first its begin."""
    diagnosed: float | None = None
    """When its ranks were asked where they are, since nothing was done for too long."""
    stacks: dict[int, Stack] = field(default_factory=dict)
    """Their answers."""
    looked: float = 0.0
    """When stragglers were last looked for."""
    snapshot: SnapshotNumber | None = None
    """The newest of its memory snapshots that is complete everywhere, and said so."""
    broken: Break | None = None
    dissolved: float | None = None
    """When its ranks were last told to leave it, since it is broken."""
    settled: bool = False
    """Broken, all causes heard, the restart accounted for."""
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace(self.record.world_size)

    @property
    def number(self) -> GenerationNumber:
        """Its generation."""
        return self.record.number

    @property
    def running(self) -> bool:
        """Whether it has committed a step."""
        return self.progress is not None

    @property
    def speechless(self) -> bool:
        """Whether it runs a program of the user's own that has told nothing, and may never do so."""
        return bool(self.record.desired.script) and not self.restored

    @property
    def total_steps(self) -> int:
        """Steps in all, as a program of the user's own has told; 0 where it has not."""
        told = self.restored[0].total_steps if 0 in self.restored else None
        return told or 0

    @property
    def ended(self) -> bool:
        """Whether all its ranks ended of their own will."""
        return len(self.finished) == self.record.world_size

    @property
    def alive(self) -> bool:
        """Whether it still trains, or is about to."""
        return self.broken is None and not self.ended

    def step_seconds(self, report: Progress) -> float:
        """Mean time of a committed step by rank 0's account; 0 when unknown."""
        restored = self.restored.get(0)
        steps = report.step - restored.step if restored and report.rank == 0 else 0
        return report.seconds.get("step", 0.0) / steps if steps > 0 else 0.0

    def usual_step_seconds(self) -> float:
        """Mean time of its steps, or of those of the world before it; 0 when unknown."""
        own = self.step_seconds(self.progress) if self.progress else 0.0
        return own or (self.before.step_seconds if self.before else 0.0)

    def resumed_from(self) -> int | None:
        """The step its state came from, as soon as a rank has told."""
        return next((restored.step for restored in self.restored.values()), None)
