"""What a coordinator knows, and the few changes that several of its decisions share."""

from __future__ import annotations

from typing import Literal

from regroup_trainer.contract import (
    Cause,
    CheckpointSaved,
    CoordinatorMessage,
    Desired,
    Evaluated,
    Exit,
    GenerationNumber,
    Hello,
    Progress,
)
from regroup_trainer.coordinator.accounting import Account, Recoveries
from regroup_trainer.coordinator.effects import Close, Effect, Send
from regroup_trainer.coordinator.journal import Journal
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.coordinator.world import Break, LastCommit, World
from regroup_trainer.job_status import Verdict

WAITING = "waiting for workers"
"""Until it is known who is there."""


class State:
    """Of one coordinator process. Times are monotonic seconds; `wall` makes them wall clock."""

    def __init__(self, term: int, node: str, desired: Desired, now: float, wall_offset: float) -> None:
        self._wall_offset = wall_offset
        self.term = term
        self.node = node
        self.desired = desired
        self.members: dict[str, Member] = {}
        self.strangers: dict[str, float] = {}
        """Name -> last heartbeat of members that have not said hello to this coordinator, or were declared lost."""
        self.lost_members: dict[int, tuple[Hello, str]] = {}
        """Index -> the member lost there and why, until a replacement says hello."""
        self.replaced: set[str] = set()
        """Members whose place another has taken: should they come back, they are let go."""
        self.world: World | None = None
        self.verdict: Verdict | None = None
        self.waiting_for = WAITING
        """Why no world is formed, as long as none is."""
        self.started = False
        """Whether the state of any generation has ever been in place."""
        self.committed: LastCommit | None = None
        self.progress: Progress | None = None
        self.checkpoint: CheckpointSaved | None = None
        self.resumed: list[tuple[GenerationNumber, int]] = []
        """Generations and the steps from which they resumed, as far as this process has seen it."""
        self.failed_save = ""
        """What went wrong with the last save; empty when it was good."""
        self.evaluation: Evaluated | None = None
        self.detections: list[tuple[Cause, float]] = []
        """Cause and seconds of every unplanned loss."""
        self.account = Account(desired.seed, now)
        self.recoveries = Recoveries()
        self.journal = Journal(self.wall(now))
        self._effects: list[Effect] = []

    def wall(self, now: float) -> float:
        """Wall clock at monotonic time `now`."""
        return now + self._wall_offset

    def tell(self, now: float, reason: str, message: str, kind: Literal["Normal", "Warning"] = "Normal") -> None:
        """Keep an event."""
        self.journal.tell(self.wall(now), reason, message, kind)

    def send(self, name: str, message: CoordinatorMessage) -> None:
        """Send a message to an agent."""
        self._effects.append(Send(name, message))

    def want(self, effect: Effect) -> None:
        """Have something done at the edge."""
        self._effects.append(effect)

    def drain(self) -> list[Effect]:
        """What is to be done since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def conclude(self, verdict: Verdict) -> None:
        """The job has ended: all agents end with it."""
        self.verdict = verdict
        for name in self.members:
            self.send(name, Exit(code=verdict.exit_code, reason=verdict.message))
        self.members.clear()

    def lose(self, member: Member, why: str, now: float, detect_seconds: float = 0.0) -> None:
        """A member is gone. If the current world needs it, that world is broken by it."""
        if self.members.pop(member.name, None) is None:
            return
        self.want(Close(member.name))
        self.lost_members[member.hello.index] = (member.hello, why)
        self.detections.append(("infrastructure", detect_seconds))
        self.tell(now, "WorkerLost", f"worker {member.hello.pod} is lost: {why}", "Warning")
        world = self.world
        place = world.record.place_of(member.name) if world else None
        if world is None or place is None or world.ended or world.settled:
            return
        if world.broken is None or world.broken.provisional or world.broken.exit is not None:
            cause: Cause = "preemption" if member.leaving else "infrastructure"
            message = f"worker {member.hello.pod} on {member.hello.node} is lost: {why}"
            world.broken = Break(now, cause, message, place, detect_seconds=detect_seconds)

    def lose_the_missed(self, now: float) -> None:
        """Ranks report a dead peer: it is a member whose connection is closed, if there is one."""
        for member in [m for m in self.members.values() if m.closed_at is not None]:
            self.lose(member, "its connection closed and its peers miss it", now)
