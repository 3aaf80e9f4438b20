"""The coordinator's decisions: messages and the passing of time in, effects out. No I/O, no clock of its own.

Every input updates what is known (members, the current world) and then `_advance` decides from that alone: adopt the
world of a predecessor, end the current one by agreement, or form the next. So the order of inputs matters little, and
a restarted coordinator comes to the same decisions from its agents' hellos.
"""

from __future__ import annotations

from dataclasses import replace

from regroup_trainer.contract import Begin, Desired, GenerationNumber, HeldSnapshots, Hello, Leaving, Lost, Report, Rung
from regroup_trainer.coordinator import stragglers
from regroup_trainer.coordinator.adoption import adopt
from regroup_trainer.coordinator.claimed_numbers import ClaimedNumbers
from regroup_trainer.coordinator.effects import Claim, Effect
from regroup_trainer.coordinator.endings import dismiss, dissolve, end_of, missed_survivor, settle, steer
from regroup_trainer.coordinator.formation import choose, make_record, waiting_message, wanted_workers
from regroup_trainer.coordinator.greeting import greet
from regroup_trainer.coordinator.hangs import watch
from regroup_trainer.coordinator.membership import expired, restart_deadlines
from regroup_trainer.coordinator.reports import hear
from regroup_trainer.coordinator.restarts import Restarts
from regroup_trainer.coordinator.snapshots import failed_rungs, repeat_complete, source_of, tell_complete, usable
from regroup_trainer.coordinator.state import WAITING, State
from regroup_trainer.coordinator.world import Break, World
from regroup_trainer.job_status import Verdict
from regroup_trainer.recovery import Holding, Situation, choose_rung

TICK_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
"""Between ticks; its processor belongs to the training, as long as only silence can be news."""
LATE_TICK_SECONDS = 0.5
"""A tick that much late means that this process was paused: its view of the others is stale."""


class Coordinator:
    """One coordinator. `now` is always the monotonic clock in seconds."""

    def __init__(self, term: int, node: str, desired: Desired, now: float, wall_offset: float) -> None:
        self.state = State(term, node, desired, now, wall_offset)
        self._numbers = ClaimedNumbers(term)
        self._restarts = Restarts()
        self._next_tick: float | None = None
        self._adopt_until = now + desired.timeout_milliseconds / 1000
        """So long a world whose members come back one after the other is waited for; counted from the first of them."""
        self._not_before = now
        self._gathering = True
        """No world yet, or too few survivors: wait a little for more than the least."""
        self._gather_until: float | None = None

    # --- inputs ------------------------------------------------------------------------------------------------------

    def pause(self, now: float) -> float:
        """Seconds to the next tick: few while a world trains on, all its members are heard, and nothing is wanted."""
        state, world = self.state, self.state.world
        if world is None or not world.alive or not world.running or world.decision is not None:
            return TICK_SECONDS
        restless = any(member.is_suspect(state.desired, now) for member in state.members.values())
        steady = min(LONGEST_PAUSE_SECONDS, state.desired.heartbeat_milliseconds / 1000)
        return TICK_SECONDS if restless or world.diagnosed else steady

    def tick(self, now: float) -> list[Effect]:
        """Let time pass. Call it again after `pause`, which a message may shorten."""
        state = self.state
        if self._next_tick is not None and now > self._next_tick + LATE_TICK_SECONDS:
            restart_deadlines(state.members.values(), now)
        for member in expired(state.members.values(), state.desired, now):
            since = member.heard if member.closed_at is None else member.closed_at
            how = "no sign of life" if member.closed_at is None else "its connection closed and it did not come back"
            state.lose(member, f"{how} for {now - since:.1f} s", now, now - since)
        if state.world is None and state.verdict is None:
            state.account.spend("pending", now)
        effects = self._advance(now)
        self._next_tick = now + self.pause(now)
        return effects

    def heartbeat(self, name: str, now: float) -> bool:
        """A sign of life; False when the member is not known here (lost, or not greeted yet)."""
        member = self.state.members.get(name)
        if member is None:
            self.state.strangers[name] = now
            return False
        member.heard = now
        return True

    def closed(self, name: str, now: float) -> list[Effect]:
        """The connection to a member was lost."""
        member, world = self.state.members.get(name), self.state.world
        if member is not None and member.closed_at is None:
            member.closed_at = now
            if world is not None and world.broken is not None and world.broken.provisional:
                self.state.lose_the_missed(now)
        return self._advance(now)

    def wish(self, desired: Desired, now: float) -> list[Effect]:
        """What the operator wants; an older revision is ignored."""
        if desired.revision >= self.state.desired.revision:
            self.state.desired = desired
            self.state.account.merge(desired.seed)
        return self._advance(now)

    def gone(self, lost: Lost, now: float) -> list[Effect]:
        """The operator's word that members are gone."""
        for name in lost.members:
            if member := self.state.members.get(name):
                self.state.lose(member, lost.reason, now)
        return self._advance(now)

    def claimed(self, number: GenerationNumber, newest: GenerationNumber | None, now: float) -> list[Effect]:
        """Answer to Claim: `number` is ours alone; `newest` is the newest lineage record on the volume."""
        self._numbers.claimed(number)
        self.state.started = self.state.started or newest is not None
        return self._advance(now)

    def claim_failed(self, why: str, now: float) -> list[Effect]:
        """Answer to Claim: the volume refused it."""
        self._numbers.refused(now)
        self.state.waiting_for = f"cannot reserve a generation number: {why}"
        return self.state.drain()

    def handle(self, message: object, name: str, now: float) -> list[Effect]:
        """A message of a connected agent."""
        if isinstance(message, Hello):
            self.state.strangers.pop(message.member, None)
            if not self.state.members and self.state.world is None:
                self._adopt_until = max(self._adopt_until, now + self.state.desired.timeout_milliseconds / 1000)
            greet(self.state, self._numbers, message, now)
            repeat_complete(self.state, message.member)
            tell_complete(self.state)
        elif (member := self.state.members.get(name)) is not None:
            member.heard = now
            if isinstance(message, Leaving):
                member.leaving = message.reason
            elif isinstance(message, HeldSnapshots):
                member.snapshots = message.snapshots
                tell_complete(self.state)
            elif isinstance(message, Report):
                hear(self.state, message, member, now)
        return self._advance(now)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        """Decide from what is known."""
        if self.state.verdict is None:
            self._reserve(now)
            self._decide(now)
            dismiss(self.state, now)
        return self.state.drain()

    def _decide(self, now: float) -> None:
        if self.state.world is None:
            if not adopt(self.state, self._adopt_until, now):
                self.state.waiting_for = "waiting for workers of a former coordinator"
                return
            self._gathering = self.state.world is None
        world = self.state.world
        if world is not None:
            self._gathering = self._gathering and not world.alive
            if world.alive:
                steer(self.state, world, now)
            if world.alive:
                watch(self.state, world, now)
                stragglers.look(self.state, world, now)
            if world.broken is not None and world.dissolved is None:
                dissolve(self.state, world, now)
            if world.broken is not None and not world.settled:
                pause = settle(self.state, world, world.broken, self._restarts, now)
                self._not_before = max(self._not_before, now + pause)
        if self.state.verdict is None and (world is None or world.settled or world.ended):
            self._form(now)

    def _reserve(self, now: float) -> None:
        number = self._numbers.wanted(now)
        if number is not None:
            self.state.want(Claim(number))

    def _form(self, now: float) -> None:
        """Begin the next generation as soon as it may be."""
        state = self.state
        leaving = state.world is not None and missed_survivor(state, state.world, now) is not None
        if state.desired.suspend and not leaving and not (state.world is None and now < self._adopt_until):
            state.tell(now, "Suspended", "the job is suspended")
            state.conclude(Verdict(outcome="suspended", message="suspended"))
            return
        candidates = [member.hello for member in state.members.values() if member.leaving is None]
        chosen = choose(candidates, state.world.record if state.world else None, state.desired, state.node)
        blocked = self._blocked(chosen, len(candidates), now)
        if blocked is not None:
            state.waiting_for = blocked
        elif self._numbers.reserved is not None:
            self._begin(chosen, self._numbers.reserved, now)

    def _blocked(self, chosen: tuple[Hello, ...], here: int, now: float) -> str | None:
        """Why no world may be formed right now."""
        state = self.state
        if not chosen:
            self._gathering, self._gather_until = True, None
            nobody_yet = not here and now < self._adopt_until  # a successor has to be found; they may well train
            return WAITING if nobody_yet else waiting_message(here, state.desired)
        missing = wanted_workers(state.desired) - len(chosen)
        if self._gather_until is None:
            self._gather_until = now + state.desired.start_grace_seconds
        if state.world is None and now < self._adopt_until and (missing > 0 or state.desired.suspend):
            return "waiting for workers of a former coordinator"
        suspects = [member for member in state.members.values() if member.is_suspect(state.desired, now)]
        if suspects:
            return f"waiting for a sign of life of {suspects[0].hello.pod}"
        if now < self._not_before:
            return f"waiting {self._not_before - now:.0f} s before the next try after a failure"
        if state.world is not None and (rank := missed_survivor(state, state.world, now)) is not None:
            return f"waiting for rank {rank} to leave generation {state.world.number}"
        if self._gathering and missing > 0 and now < self._gather_until:
            return f"waiting for {missing} more of {wanted_workers(state.desired)} workers"
        return None if self._numbers.reserved else state.waiting_for

    def _begin(self, chosen: tuple[Hello, ...], number: GenerationNumber, now: float) -> None:
        state, before = self.state, self.state.world
        end = end_of(state, before, now)
        held = self._held(chosen, before)
        because = self._rung(held, before, end)
        snapshot = source_of(state, held) if because[0] in ("L0", "L1") else None
        record = make_record(number, chosen, state.desired, because, snapshot)
        state.account.spend("pending" if before is None else "idle", now)
        state.world = World(record, begun=now, heard=now, moved=now, before=state.committed, follows=end)
        if end is not None and before is not None:
            state.recoveries.open(end, state.wall(end.time), record, before.record.world_size, record.rung)
        self._numbers.use()
        self._gathering, self._gather_until = False, None
        for name in state.members:
            state.send(name, Begin(record=record))
        text = f"generation {number}: {record.world_size} ranks on {len(chosen)} workers ({record.reason})"
        state.tell(now, "WorldFormed", text)
        self._reserve(now)

    def _held(self, chosen: tuple[Hello, ...], before: World | None) -> list[Holding]:
        """What is in the memory of the members of the next world, and of those who will be none but live."""
        members = [_holding(hello, before) for hello in chosen]
        names = {holding.member for holding in members}
        others = [Holding(name) for name in self.state.members if name not in names]
        return [replace(held, snapshots=usable(self.state, held.member)) for held in (*members, *others)]

    def _rung(self, held: list[Holding], before: World | None, end: Break | None) -> tuple[Rung, str]:
        situation = Situation(tuple(held), started=self.state.started)
        rung, why = choose_rung(situation, excluded=failed_rungs(before))
        return rung, f"{end.message if end else 'the workers are there'}; state: {why}"[:4096]


def _holding(hello: Hello, before: World | None) -> Holding:
    """What a member brings into the next world."""
    place = before.record.place_of(hello.member) if before else None
    if before is None or place is None:
        return Holding(hello.member)
    return Holding(hello.member, live=tuple(before.kept[rank] for rank in place.own_ranks if rank in before.kept))
