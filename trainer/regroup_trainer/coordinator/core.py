"""The coordinator's decisions: messages and the passing of time in, effects out. No I/O, no clock of its own.

Every input updates what is known (members, the current world) and then `_advance` decides from that alone: adopt the
world of a predecessor, end the current one by agreement, or form the next. So the order of inputs matters little, and
a restarted coordinator comes to the same decisions from its agents' hellos.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from regroup_trainer.contract import Begin as BeginMessage
from regroup_trainer.contract import (
    Cause,
    CheckpointFailed,
    CheckpointSaved,
    CoordinatorMessage,
    Decide,
    Desired,
    Evaluated,
    Exit,
    Finished,
    GenerationNumber,
    Hello,
    Leaving,
    Lost,
    Progress,
    RankExit,
    Refused,
    Report,
    Restored,
    Rung,
    Verdict,
    Welcome,
)
from regroup_trainer.coordinator.accounting import Account, Recoveries
from regroup_trainer.coordinator.effects import Claim, Close, Effect, Send
from regroup_trainer.coordinator.formation import choose, make_record, waiting_message, wanted_workers
from regroup_trainer.coordinator.journal import Journal
from regroup_trainer.coordinator.membership import Member, expired, restart_deadlines
from regroup_trainer.coordinator.planned import HONOUR_SECONDS, planned_change
from regroup_trainer.coordinator.restarts import Restarts, describe, refusal
from regroup_trainer.coordinator.world import Break, LastCommit, World
from regroup_trainer.recovery import Holding, Situation, choose_rung

LATE_TICK_SECONDS = 0.5
"""A tick that much late means that this process was paused: its view of the others is stale."""
SETTLE_SECONDS = 0.02
"""After a rank's end, time for the ends of its peers to be heard before the next world is formed."""
CLAIM_RETRY_SECONDS = 1.0


class Coordinator:
    """All state of one coordinator process. `now` is monotonic seconds; with `wall_offset` added it is wall clock."""

    def __init__(self, term: int, node: str, desired: Desired, now: float, wall_offset: float) -> None:
        self.term = term
        self.node = node
        self.desired = desired
        self.members: dict[str, Member] = {}
        self.lost_members: dict[int, tuple[Hello, str]] = {}
        """Index -> the member lost there and why, until a replacement says hello."""
        self._replaced: set[str] = set()
        """Members whose place another has taken: should they come back, they are let go."""
        self.world: World | None = None
        self.verdict: Verdict | None = None
        self.committed: LastCommit | None = None
        self.checkpoint: CheckpointSaved | None = None
        self.evaluation: Evaluated | None = None
        self.progress: Progress | None = None
        self.waiting_for = "waiting for workers"
        self.detections: list[tuple[str, float]] = []
        self.account = Account(desired.seed, now)
        self.recoveries = Recoveries()
        self.wall_offset = wall_offset
        self.journal = Journal(self.wall(now))
        self._restarts = Restarts()
        self._adopt_until = now + desired.timeout_milliseconds / 1000
        self._last_tick: float | None = None
        self._lineage: GenerationNumber | None = None
        """The newest generation whose state was in place."""
        self._floor = 0
        """Highest n of this term that may have been used."""
        self._reserved: GenerationNumber | None = None
        self._claim_asked = False
        self._claim_again_at = now
        self._not_before = now
        self._gathering = True
        """No world yet, or too few survivors: wait a little for more than the least."""
        self._gather_until: float | None = None
        self._effects: list[Effect] = []

    def wall(self, now: float) -> float:
        """Wall clock at monotonic time `now`."""
        return now + self.wall_offset

    # --- inputs ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Let time pass. Call it every few tens of milliseconds."""
        if self._last_tick is not None and now - self._last_tick > LATE_TICK_SECONDS:
            restart_deadlines(self.members.values(), now)
        self._last_tick = now
        for member in expired(self.members.values(), self.desired, now):
            since = member.heard if member.closed_at is None else member.closed_at
            how = "no sign of life" if member.closed_at is None else "its connection closed and it did not come back"
            self._lose(member, f"{how} for {now - since:.1f} s", now, now - since)
        if self.world is None and not self.verdict:
            self.account.spend("pending", now)
        return self._advance(now)

    def heartbeat(self, name: str, now: float) -> bool:
        """A sign of life; False when the member is not known here (lost, or not greeted yet)."""
        member = self.members.get(name)
        if member is not None:
            member.heard = now
        return member is not None

    def closed(self, name: str, now: float) -> list[Effect]:
        """The connection to a member was lost."""
        member = self.members.get(name)
        if member is not None and member.closed_at is None:
            member.closed_at = now
            if self.world is not None and self.world.broken is not None and self.world.broken.provisional:
                self._lose(member, "its connection closed and its peers miss it", now, 0.0)
        return self._advance(now)

    def wish(self, desired: Desired, now: float) -> list[Effect]:
        """What the operator wants; an older revision is ignored."""
        if desired.revision >= self.desired.revision:
            self.desired = desired
            self.account.merge(desired.seed)
        return self._advance(now)

    def gone(self, lost: Lost, now: float) -> list[Effect]:
        """The operator's word that members are gone."""
        for name in lost.members:
            if member := self.members.get(name):
                self._lose(member, lost.reason, now, 0.0)
        return self._advance(now)

    def claimed(self, number: GenerationNumber, newest: GenerationNumber | None, now: float) -> list[Effect]:
        """Answer to Claim: `number` is ours alone; `newest` is the newest lineage record on the volume."""
        self._claim_asked = False
        if number.n > self._floor:
            self._reserved = number
            self._floor = number.n
        self._know_lineage(newest)
        return self._advance(now)

    def claim_failed(self, why: str, now: float) -> list[Effect]:
        """Answer to Claim: the volume refused it."""
        self._claim_asked = False
        self._claim_again_at = now + CLAIM_RETRY_SECONDS
        self.waiting_for = f"cannot reserve a generation number: {why}"
        return self._drain()

    def handle(self, message: object, name: str, now: float) -> list[Effect]:
        """A message of a connected agent."""
        if isinstance(message, Hello):
            self._greet(message, now)
        elif (member := self.members.get(name)) is not None:
            member.heard = now
            if isinstance(message, Leaving):
                member.leaving = message.reason
            elif isinstance(message, Report):
                self._report(message, member, now)
        return self._advance(now)

    # --- agents ------------------------------------------------------------------------------------------------------

    def _greet(self, hello: Hello, now: float) -> None:
        if hello.highest is not None and hello.highest.term > self.term:
            reason = f"this is the coordinator of term {self.term}, but term {hello.highest.term} has begun"
            self._send(hello.member, Refused(reason=reason, final=False))
            return
        self._send(hello.member, Welcome(term=self.term))
        if self.verdict is not None:
            self._send(hello.member, Exit(code=self.verdict.exit_code, reason=self.verdict.message))
            return
        holder = next((m for m in self.members.values() if m.hello.index == hello.index), None)
        if hello.member in self._replaced and holder is not None and holder.name != hello.member:
            self._send(hello.member, Exit(code=0, reason=f"replaced by {holder.hello.pod}"))
            return
        self._enroll(hello, now)
        self._learn(hello)
        self._place(hello, now)

    def _enroll(self, hello: Hello, now: float) -> None:
        for rival in [m for m in self.members.values() if m.hello.index == hello.index and m.name != hello.member]:
            self._replaced.add(rival.name)
            self._lose(rival, f"replaced by {hello.pod}", now, 0.0)
        known = self.members.get(hello.member)
        member = Member(
            hello=hello, heard=now, leaving=known.leaving if known else None, step=known.step if known else 0
        )
        self.members[hello.member] = member
        former = self.lost_members.pop(hello.index, None)
        if former is not None and former[0].member != hello.member:
            self._replaced.add(former[0].member)

    def _learn(self, hello: Hello) -> None:
        """Take over what an agent knows better than a coordinator that has just started."""
        if hello.highest is not None and hello.highest.term == self.term and hello.highest.n >= self._floor:
            self._floor = hello.highest.n
            self._reserved = None
        if hello.record is not None and hello.record.desired.revision > self.desired.revision:
            self.desired = hello.record.desired
            self.account.merge(self.desired.seed)
        if hello.checkpoint is not None and (self.checkpoint is None or hello.checkpoint.time > self.checkpoint.time):
            self.checkpoint = hello.checkpoint

    def _place(self, hello: Hello, now: float) -> None:
        """Tell a member of the current world, or one with leftovers of another, where it stands."""
        if self.world is None:
            return
        if hello.record is not None and hello.record.number == self.world.number:
            self._echo(hello, now)
        elif self.world.record.place_of(hello.member) is not None or hello.record is not None:
            self._send(hello.member, BeginMessage(record=self.world.record))

    def _echo(self, hello: Hello, now: float) -> None:
        member = self.members[hello.member]
        if hello.progress is not None:
            self._report(hello.progress, member, now)
        for end in hello.ended:
            self._report(end, member, now)
        world = self.world
        if world is not None and world.decision is not None and world.record.members[0].member == hello.member:
            self._send(hello.member, Decide(generation=world.number, decision=world.decision))

    def _lose(self, member: Member, why: str, now: float, detect_seconds: float) -> None:
        if self.members.pop(member.name, None) is None:
            return
        self._effects.append(Close(member.name))
        if self.verdict is not None:
            return
        self.lost_members[member.hello.index] = (member.hello, why)
        self.detections.append(("infrastructure", detect_seconds))
        self.journal.tell(self.wall(now), "WorkerLost", f"worker {member.hello.pod} is lost: {why}", "Warning")
        world = self.world
        place = world.record.place_of(member.name) if world else None
        if world is None or place is None or world.ended or world.settled:
            return
        if world.broken is None or world.broken.exit is not None:
            cause: Cause = "preemption" if member.leaving else "infrastructure"
            message = f"worker {member.hello.pod} on {member.hello.node} is lost: {why}"
            world.broken = Break(now, cause, message, place, detect_seconds=detect_seconds)

    # --- reports of ranks --------------------------------------------------------------------------------------------

    def _report(self, report: Report, member: Member, now: float) -> None:
        """Fenced: only ranks of the current generation, told by the member that runs them, are heard."""
        world = self.world
        if world is None or report.generation != world.number or self.verdict is not None:
            return
        place = world.place_of_rank(report.rank)
        if place is None or place.member != member.name:
            return
        world.heard = now
        handler = self._HANDLERS.get(type(report))
        if handler is not None:
            handler(self, report, world, now)
        if isinstance(report, Restored | Progress):
            member.step = report.step

    def _on_restored(self, report: Restored, world: World, now: float) -> None:
        world.restored[report.rank] = report
        self._know_lineage(world.number)
        if report.rank != 0:
            return
        self.account.restored(world.before is None, report.seconds, now)
        lost = self.recoveries.restored(report, world.before)
        if world.before is not None and lost:
            self.account.lost(lost, lost * world.before.step_seconds)
        self.committed = LastCommit(report.step, world.before.time if world.before else self.wall(now))
        for skipped in report.skipped:
            self.journal.tell(
                self.wall(now), "CheckpointCorrupt", f"{skipped.path} was passed over: {skipped.why}", "Warning"
            )

    def _on_progress(self, report: Progress, world: World, now: float) -> None:
        first = world.first_commit is None
        world.first_commit = world.first_commit or report
        if self.committed is None or report.step > self.committed.step:
            step_seconds = self.committed.step_seconds if self.committed else 0.0
            self.committed = LastCommit(report.step, report.time, world.step_seconds(report) or step_seconds)
        if first and (done := self.recoveries.first_step(report, world.before)) is not None:
            self._tell_recovery(done.cause, f"{done.world_before} -> {done.world_after} ranks from {done.rung}", now)
        if report.rank == 0:
            self.account.progress(report.seconds, now)
            world.progress = self.progress = report

    def _tell_recovery(self, cause: str, how: str, now: float) -> None:
        done = self.recoveries.records()[-1]
        planned = cause in ("resize", "preemption")
        lost = "" if planned else f", {done.lost_steps or 0} steps lost"
        down = f"{done.down_seconds or 0:.1f} s down"
        text = f"training goes on: {how}, resumed from step {done.resumed_from_step}, {down}{lost}"
        self.journal.tell(self.wall(now), "Resized" if planned else "Recovered", text)

    def _on_checkpoint(self, report: CheckpointSaved, _world: World, now: float) -> None:
        self.checkpoint = report
        self.journal.tell_checkpoint(
            self.wall(now), f"step {report.step} saved to {report.path} in {report.seconds:.1f} s"
        )

    def _on_checkpoint_failed(self, report: CheckpointFailed, _world: World, now: float) -> None:
        text = f"checkpoint of step {report.step} failed ({report.stage}): {report.error}"
        self.journal.tell(self.wall(now), "CheckpointFailed", text, "Warning")

    def _on_evaluated(self, report: Evaluated, _world: World, _now: float) -> None:
        self.evaluation = report

    def _on_finished(self, report: Finished, world: World, now: float) -> None:
        world.finished[report.rank] = report
        if world.ended and all(end.reason == "completed" for end in world.finished.values()):
            self.journal.tell(self.wall(now), "Completed", f"trained {report.step} steps")
            self._conclude(Verdict(outcome="completed", message=f"trained {report.step} steps"))

    def _on_exit(self, report: RankExit, world: World, now: float) -> None:
        if report.rank in world.exits or world.settled:
            return
        world.exits[report.rank] = report
        if world.broken is not None and not (world.broken.provisional and report.cause != "peer"):
            return
        place = world.place_of_rank(report.rank)
        message = describe(report, place.pod if place else "")
        if report.cause != "peer":
            world.broken = Break(now, "application", message, place, exit=report)
            return
        message = f"a connection between ranks failed: {message}"
        world.broken = Break(now, "infrastructure", message, place, exit=report, provisional=True)
        for member in [m for m in self.members.values() if m.closed_at is not None]:
            self._lose(member, "its connection closed and its peers miss it", now, 0.0)

    _HANDLERS: ClassVar[dict[type[Report], Callable[..., None]]] = {
        Restored: _on_restored,
        Progress: _on_progress,
        CheckpointSaved: _on_checkpoint,
        CheckpointFailed: _on_checkpoint_failed,
        Evaluated: _on_evaluated,
        Finished: _on_finished,
        RankExit: _on_exit,
    }

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        """Decide from what is known."""
        if self.verdict is None:
            self._reserve(now)
            self._decide(now)
            self._dismiss()
        return self._drain()

    def _decide(self, now: float) -> None:
        if self.world is None:
            self._adopt(now)
        world = self.world
        if world is not None and world.alive:
            self._steer(world, now)
        if world is not None and world.broken is not None and not world.settled:
            self._settle(world, world.broken, now)
        over = world is None or world.settled or world.ended
        if over and self.verdict is None:
            self._form(now)

    def _reserve(self, now: float) -> None:
        """Keep one number claimed ahead, so that a recovery never waits for the volume."""
        if self._reserved is None and not self._claim_asked and now >= self._claim_again_at:
            self._claim_asked = True
            self._effects.append(Claim(GenerationNumber(self.term, self._floor + 1)))

    def _adopt(self, now: float) -> None:
        """Take over the newest world that returning agents tell of; those who are missing at the end are lost."""
        echoes = [m.hello for m in self.members.values() if m.hello.record is not None]
        record = max((h.record for h in echoes if h.record), key=lambda record: record.number, default=None)
        if record is None:
            return
        back = {h.member: h for h in echoes if h.record is not None and h.record.number == record.number}
        missing = [place for place in record.members if place.member not in back]
        if missing and now < self._adopt_until:
            return
        self.world = World(record, begun=now, heard=now)
        self._gathering = False
        self._know_lineage(record.parent)
        self._adopt_progress(list(back.values()), now)
        if missing:
            message = f"worker {missing[0].pod} did not come back after the coordinator's restart"
            self.world.broken = Break(now, "infrastructure", message, missing[0])
        for hello in back.values():
            self._echo(hello, now)

    def _adopt_progress(self, back: list[Hello], now: float) -> None:
        newest = max((h.progress for h in back if h.progress), key=lambda progress: progress.step, default=None)
        if newest is not None:
            self.committed = LastCommit(newest.step, newest.time)
            self._know_lineage(newest.generation)
        self.account.adopt(next((h.progress for h in back if h.progress and h.progress.rank == 0), None), now)

    def _know_lineage(self, number: GenerationNumber | None) -> None:
        self._lineage = max((known for known in (self._lineage, number) if known is not None), default=None)

    def _steer(self, world: World, now: float) -> None:
        """End the world by agreement when another is wanted."""
        change = planned_change(world, self.members, self.desired, self.node)
        if change is not None and (world.decision is None or change.decision > world.decision):
            world.decision, world.change, world.decided = change.decision, change, now
            self._send(world.record.members[0].member, Decide(generation=world.number, decision=change.decision))
        if world.change is not None and now - max(world.decided, world.heard) > HONOUR_SECONDS:
            message = f"{world.change.reason}, but the ranks did not agree on an end within {HONOUR_SECONDS:.0f} s"
            world.broken = Break(now, world.change.cause, message, world.change.place)

    def _settle(self, world: World, broken: Break, now: float) -> None:
        """Once the first cause is certain, count it and decide whether and when to go on."""
        if now < broken.time + self._settling_seconds(broken):
            return
        world.settled = True
        self.account.restart(broken.cause)
        if broken.exit is None:
            return
        self._not_before = now + self._restarts.pause(self.committed.step if self.committed else 0, self.desired)
        if broken.cause != "application":
            return
        self.detections.append(("application", 0.0))
        self.journal.tell(self.wall(now), "RankFailed", broken.message, "Warning")
        why = refusal(broken.exit, self.account.used("application") - 1, self.desired)
        if why is not None:
            code = broken.exit.exit_code or 1
            message = f"{broken.message}; {why}\n{broken.exit.message}"[:4096]
            self.journal.tell(self.wall(now), "Failed", f"{broken.message}; {why}", "Warning")
            self._conclude(Verdict(outcome="failed", message=message, exit_code=code))

    def _settling_seconds(self, broken: Break) -> float:
        if broken.provisional:
            return self.desired.heartbeat_milliseconds / 1000
        return SETTLE_SECONDS if broken.exit is not None else 0.0

    def _form(self, now: float) -> None:
        """Begin the next generation as soon as it may be."""
        if self.desired.suspend:
            self.journal.tell(self.wall(now), "Suspended", "the job is suspended")
            self._conclude(Verdict(outcome="suspended", message="suspended"))
            return
        candidates = [m.hello for m in self.members.values() if m.leaving is None]
        chosen = choose(candidates, self.world.record if self.world else None, self.desired, self.node)
        blocked = self._blocked(chosen, len(candidates), now)
        if blocked is not None:
            self.waiting_for = blocked
        elif self._reserved is not None:
            self._begin(chosen, self._reserved, now)

    def _blocked(self, chosen: tuple[Hello, ...], here: int, now: float) -> str | None:
        """Why no world may be formed right now."""
        if not chosen:
            self._gathering, self._gather_until = True, None
            return waiting_message(here, self.desired)
        missing = wanted_workers(self.desired) - len(chosen)
        if self._gather_until is None:
            self._gather_until = now + self.desired.start_grace_seconds
        if self.world is None and missing > 0 and now < self._adopt_until:
            return "waiting for workers of a former coordinator"
        suspects = [m for m in self.members.values() if m.is_suspect(self.desired, now)]
        if suspects:
            return f"waiting for a sign of life of {suspects[0].hello.pod}"
        if now < self._not_before:
            return f"waiting {self._not_before - now:.0f} s before the next try after a failure"
        if self._gathering and missing > 0 and now < self._gather_until:
            return f"waiting for {missing} more of {wanted_workers(self.desired)} workers"
        return None if self._reserved else self.waiting_for

    def _begin(self, chosen: tuple[Hello, ...], number: GenerationNumber, now: float) -> None:
        before = self.world
        end = self._end_of(before, now)
        because = self._rung(chosen, before, end)
        record = make_record(number, self._lineage, chosen, self.desired, because)
        self.account.spend("pending" if before is None else "idle", now)
        self.world = World(record, begun=now, heard=now, before=self.committed, follows=end)
        if end is not None and before is not None:
            self.recoveries.open(end, self.wall(end.time), record, before.record.world_size, record.rung)
        self._floor, self._reserved = number.n, None
        self._gathering, self._gather_until = False, None
        for name in self.members:
            self._send(name, BeginMessage(record=record))
        text = f"generation {number}: {record.world_size} ranks on {len(chosen)} workers ({record.reason})"
        self.journal.tell(self.wall(now), "WorldFormed", text)
        self._reserve(now)

    def _end_of(self, world: World | None, now: float) -> Break | None:
        """How the last world ended: broken, or by a planned change."""
        if world is None or world.broken is not None:
            return world.broken if world else None
        if world.change is None:
            return Break(now, "resize", "the ranks ended the world by agreement")
        self.account.restart(world.change.cause)
        return Break(now, world.change.cause, world.change.reason, world.change.place)

    def _rung(self, chosen: tuple[Hello, ...], before: World | None, end: Break | None) -> tuple[Rung, str]:
        here = {place.member for place in before.record.members} if before else set()
        holdings = tuple(Holding(hello.member, joined=hello.member not in here) for hello in chosen)
        rung, why = choose_rung(Situation(holdings, shards=1, started=self._lineage is not None))
        return rung, f"{end.message if end else 'the workers are there'}; state: {why}"[:4096]

    def _dismiss(self) -> None:
        """Let those go who asked to, or are too many, once no living world needs them."""
        needed = self.world.record if self.world is not None and self.world.alive else None
        for name, member in list(self.members.items()):
            surplus = member.hello.index >= self.desired.replicas and needed is not None
            if (member.leaving is None and not surplus) or (needed is not None and needed.place_of(name) is not None):
                continue
            self._send(name, Exit(code=0, reason=member.leaving or "the job was scaled down"))
            del self.members[name]

    def _conclude(self, verdict: Verdict) -> None:
        self.verdict = verdict
        for name in self.members:
            self._send(name, Exit(code=verdict.exit_code, reason=verdict.message))
        self.members.clear()

    def _send(self, name: str, message: CoordinatorMessage) -> None:
        self._effects.append(Send(name, message))

    def _drain(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
