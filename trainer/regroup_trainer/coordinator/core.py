"""The coordinator's decisions: messages and the passing of time in, effects out. Pure.

The life of a job is a row of generations. A generation is one agreed membership, with a place for
every rank. The story of one generation:

1. Agents send hellos and become members (`registration`).
2. As soon as nothing has to be waited for (`waiting`), the next generation is formed: a number is
   taken from the reserve, `formation` chooses and orders the members, `restore_source` decides
   where the state comes from, and every agent receives Begin.
3. Ranks report what they do (`reports`). Meanwhile the core watches for a reason to end the
   generation: something else is desired (`transitions`), a member is lost (`membership`), no step
   comes (`hangs`), a rank failed (`reports`).
4. The generation ends, by agreement or by a failure (`generation_end`), and the next is formed.

Every input only updates what is known; `_advance` then decides from that alone. So the order of
inputs matters little, and a restarted coordinator comes to the same decisions from the hellos of
its agents (`adoption`).

What decisions ask about all members or ranks is kept where a single one of them changes: in
`Members`, `CurrentGeneration`, `FormerGeneration` and `SnapshotCopies`. So a message that changes
no decision costs the same however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Container

from regroup_trainer.coordinator.adoption import adopt
from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration, GenerationEnd
from regroup_trainer.coordinator.effects import Effect, LookForFormer, ReserveNumber
from regroup_trainer.coordinator.formation import choose, make_record, size_of_next
from regroup_trainer.coordinator.generation_end import (
    abort,
    apply_transition,
    end_of,
    finalize,
    holds_unsaved,
    leaving_holders,
    rank_not_out,
    release,
)
from regroup_trainer.coordinator.hangs import check_stragglers, watch
from regroup_trainer.coordinator.membership import Member, overload
from regroup_trainer.coordinator.registration import register
from regroup_trainer.coordinator.reports import announce_volume, on_report
from regroup_trainer.coordinator.reserved_numbers import ReservedNumbers
from regroup_trainer.coordinator.restart_budget import RestartBackoff
from regroup_trainer.coordinator.snapshot_registry import (
    announce_complete,
    failed_sources,
    hold,
    holdings_of,
    repeat_announcement,
    source_of,
)
from regroup_trainer.coordinator.transitions import (
    desired_of_next,
    request_checkpoint,
    request_restart,
)
from regroup_trainer.coordinator.waiting import FormationTimers, WaitingContext, find_waiting
from regroup_trainer.protocol.agent_messages import HeldSnapshots, Hello, Leaving, Reports
from regroup_trainer.protocol.coordinator_messages import Begin
from regroup_trainer.protocol.desired import Desired, LastKnown, Lost
from regroup_trainer.protocol.generation import GenerationNumber, RestoredFrom
from regroup_trainer.protocol.job_status import Outcome
from regroup_trainer.protocol.message import TEXT_LIMIT
from regroup_trainer.protocol.rank_messages import Report, VolumeProblem
from regroup_trainer.protocol.restore_source import Holding, RestoreContext, choose_source

TICK_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
"""Between ticks of a steady generation. The processor belongs to the training."""
MOST_UNKNOWN = 10_000
"""Agents without a hello that are remembered: more than a job can have."""
PAUSE_SECONDS = 0.5
"""A tick that is so late shows that this process was paused. Its view of the others is stale."""
COUNTED_SECONDS = 0.25
"""Of each pause count as time without contact. Otherwise a coordinator that is paused all the time
would never find one that is gone.
"""
RETURN_TO_SAVE_SECONDS = 30.0
"""After its start, for the first worker that has the state of a job to suspend. Nobody saves it
once the job counts as suspended, and workers may take seconds to find a new coordinator.
"""
LONGEST_UNREAD_SECONDS = 10.0
"""So long does a report that has arrived unread hold up what waits for it. Then this process is too
slow for its agents, and goes on without.
"""
REPLACED_SECONDS = 2.0
"""One that is so late may come from a process that has got a successor meanwhile."""


class Coordinator:
    """The core of one coordinator. `now` is always the monotonic clock in seconds."""

    def __init__(
        self, term: int, node: str, desired: Desired, now: float, wall_offset: float
    ) -> None:
        self.state = State(term, node, desired, now, wall_offset)
        self._numbers = ReservedNumbers(term)
        self._backoff = RestartBackoff()
        self._next_tick = math.inf
        self._timers = FormationTimers(
            adopt_until=now + desired.timeout_milliseconds / 1000,
            return_until=now + RETURN_TO_SAVE_SECONDS,
            not_before=now,
        )
        self._await_state()
        self.state.waiting = find_waiting(self._waiting_context(now))

    # --- inputs -----------------------------------------------------------------------------------

    def pause(self, now: float) -> float:
        """Seconds to the next tick: longer while a generation trains and nothing is wanted."""
        state, current = self.state, self.state.current
        if current is None or not current.alive or not current.running:
            return TICK_SECONDS
        if current.decision is not None or current.diagnosed_at:
            return TICK_SECONDS
        if state.members.first_suspect(state.desired, now) is not None:
            return TICK_SECONDS
        return min(LONGEST_PAUSE_SECONDS, state.desired.heartbeat_milliseconds / 1000)

    def tick(
        self, now: float, read_until: float | None = None, reported_until: float | None = None
    ) -> list[Effect]:
        """Let time pass. Call it again after `pause`, which a message may shorten. Hellos and
        signs of life that arrived later than `read_until` (`now`, if it is not given) may be
        unknown yet, and reports that arrived later than `reported_until`.
        """
        state = self.state
        self._note_pause(now)
        reported = now if reported_until is None else reported_until
        reported = max(reported, now - LONGEST_UNREAD_SECONDS)
        state.reported_until = max(state.reported_until, reported)
        state.read_until = max(state.read_until, now if read_until is None else read_until)
        for member in state.members.expired(state.desired, state.read_until):
            if member.closed_at is None:
                since, how = member.last_seen, "no heartbeat"
            else:
                since = member.closed_at
                how = "its connection closed and no new one came"
            state.lose(member, f"{how} for {now - since:.1f} s", now, since)
        if state.outcome is None:
            state.book(now)
        effects = self._advance(now)
        self._next_tick = now + self.pause(now)
        return effects

    def _note_pause(self, now: float) -> None:
        """Forgive what others could not show while this process was paused, once for each pause.
        Each input that leads to decisions begins with it: any may come before the next tick.
        """
        late = now - self._next_tick
        if late <= PAUSE_SECONDS:
            return
        self._next_tick = now
        if late > REPLACED_SECONDS:
            self._numbers.doubt()
        state, forgiven = self.state, late - COUNTED_SECONDS
        state.members.forgive(forgiven, now)
        self._timers.forgive(forgiven)
        state.cut_off.forgive(forgiven)
        unknown = state.unknown_members
        state.unknown_members = {name: min(now, at + forgiven) for name, at in unknown.items()}
        if state.current is not None:
            state.current.forgive(forgiven, now)

    def on_heartbeat(self, name: str, now: float, delay: float = 0.0) -> bool:
        """A sign of life that was sent `delay` seconds late; False when it comes from no member
        (lost, or no hello yet).
        """
        self._note_pause(now)
        member = self.state.members.get(name)
        if member is None:
            self._note_unknown(name, now)
            return False
        self.state.members.on_seen(member, now)
        self.state.members.on_delay(member, delay, now)
        if member.allowance(self.state.desired):
            late, wall = overload([member], self.state.desired), self.state.wall(now)
            self.state.journal.emit_rarely(wall, "HeartbeatsLate", late, "Warning")
        return True

    def on_importing(self, index: int, name: str, now: float) -> None:
        """A worker that has not connected yet imports torch. An older agent gives no name."""
        if index < self.state.desired.workers:
            self.state.importing[index] = now
            self.state.agents_give_names &= bool(name)
            if name and name not in self.state.members:  # its hello may overtake this
                self._note_unknown(name, now)

    def on_closed(self, name: str, now: float, *, here: bool = False) -> list[Effect]:
        """The connection to a member closed. `here`: this process closed it."""
        self._note_pause(now)
        member, current = self.state.members.get(name), self.state.current
        if member is not None and member.closed_at is None:
            self.state.members.on_closed(member, now, here=here)
            if current is not None and current.failure and current.failure.provisional:
                self.state.lose_disconnected(now)
        return self._advance(now)

    def update_desired(self, desired: Desired, now: float) -> list[Effect]:
        """The operator sent what the job should be. An older revision is ignored."""
        self._note_pause(now)
        if desired.revision >= self.state.desired.revision:
            if desired != self.state.desired:  # else each later look would compare the two
                self.state.desired = desired
            self.state.account.merge(desired.seed)
            self._await_state()
        return self._advance(now)

    def _await_state(self) -> None:
        """Do not suspend a job that has trained before one of its workers is back to save."""
        state, timers = self.state, self._timers
        is_back = state.current is not None or state.former.record is not None
        if state.desired.suspend and state.last_known and not is_back:
            timers.adopt_until = max(timers.adopt_until, timers.return_until)

    def on_lost(self, lost: Lost, now: float) -> list[Effect]:
        """The operator reports members that are gone."""
        self._note_pause(now)
        self.state.ended_pods.update(lost.members)
        for name in lost.members:
            if member := self.state.members.get(name):
                self.state.lose(member, lost.reason, now)
        return self._advance(now)

    def on_reserved(
        self, number: GenerationNumber, newest: GenerationNumber | None, now: float
    ) -> list[Effect]:
        """Answer to ReserveNumber: `number` is ours alone.

        `newest` is the newest generation with a lineage record on the volume.
        """
        self._note_pause(now)
        self._numbers.on_granted(number)
        state = self.state
        state.volume.for_numbers = None
        state.started = state.started or newest is not None
        if newest is not None and newest.term == state.term and state.current is None:
            # A former process of this coordinator: a generation began that nobody reports now.
            state.last_known = state.last_known or LastKnown(time=state.wall(now), world_size=0)
        return self._advance(now)

    def on_reservation_failed(self, why: str, now: float) -> list[Effect]:
        """Answer to ReserveNumber: the volume refused it."""
        self._note_pause(now)
        self._numbers.on_refused(why, now)
        self._note_volume(why, now)
        return self._advance(now)

    def on_reservation_unanswered(self, why: str, now: float) -> list[Effect]:
        """ReserveNumber has no answer yet, for long; it may still come."""
        self._note_pause(now)
        self._numbers.on_unanswered(why)
        self._note_volume(why, now)
        return self._advance(now)

    def on_former(self, number: GenerationNumber, size: int, now: float) -> list[Effect]:
        """Answer to LookForFormer: the generation, and the bytes of its history."""
        self._note_pause(now)
        self.state.cut_off.note(number, size, now)
        return self._advance(now)

    def on_checkpoint_looked_for(self, request: str, found: bool, now: float) -> list[Effect]:
        """Answer to LookForCheckpoint."""
        self._note_pause(now)
        self.state.restart_step_found = request, found
        return self._advance(now)

    def on_message(self, message: object, name: str, now: float) -> list[Effect]:
        """A message of a connected agent."""
        self._note_pause(now)
        if isinstance(message, Hello):
            self._on_hello(message, now)
        elif (member := self.state.members.get(name)) is not None:
            self.state.members.on_seen(member, now)
            if isinstance(message, Reports | Report):
                return self._on_reports(message, member, now)
            if isinstance(message, Leaving):
                self.state.members.on_leaving(member, message.reason)
            elif isinstance(message, HeldSnapshots):
                hold(self.state, member, message.snapshots)
        return self._advance(now)

    def _on_reports(self, message: Reports | Report, member: Member, now: float) -> list[Effect]:
        """One decision follows all reports of a message, and none those that change nothing."""
        reports = message.reports if isinstance(message, Reports) else (message,)
        if self.state.current is None:
            member.note_early(reports)
        current = [report for report in reports if self._is_current(report)]
        for report in current:
            on_report(self.state, report, member, now)
        return self._advance(now) if current else []

    def _is_current(self, report: Report) -> bool:
        current = self.state.current
        return current is not None and report.generation == current.number

    def _note_unknown(self, name: str, now: float) -> None:
        unknown = self.state.unknown_members
        unknown.pop(name, None)
        unknown[name] = now  # the newest is the last
        if len(unknown) > MOST_UNKNOWN:
            del unknown[next(iter(unknown))]

    def _on_hello(self, hello: Hello, now: float) -> None:
        state = self.state
        state.unknown_members.pop(hello.member, None)
        is_first, former = not state.members, state.former
        number, awaited = former.number, len(former.missing)
        register(state, self._numbers, hello, now)
        if state.former.number != number:
            is_first = True
            self._timers.adopt_until = min(now, self._timers.adopt_until)  # not `_await_state`
        if state.current is None and (is_first or len(state.former.missing) < awaited):
            timeout = state.desired.timeout_milliseconds / 1000
            self._timers.note_return(now, timeout, is_first=is_first)
        repeat_announcement(state, hello.member)
        announce_complete(state)

    # --- decisions --------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        """Decide from what is known; returns what is to be done."""
        state = self.state
        state.journal.emit_losses(state.wall(now))
        if state.outcome is None:
            self._reserve(now)
            if state.current is None:
                self._adopt(now)
            if state.current is not None:
                self._oversee(state.current, now)
            self._form(now)
            release(state)
            announce_volume(state, now)
        return state.drain()

    def _reserve(self, now: float) -> None:
        number = self._numbers.next_request(now)
        if number is not None:
            self.state.require(ReserveNumber(number))

    def _note_volume(self, why: str, now: float) -> None:
        volume, ahead = self.state.volume, self._numbers.ahead
        since = volume.for_numbers.since if volume.for_numbers else self.state.wall(now)
        risk = f"{ahead} more generations can begin; after these, states in memory wait"
        directory = self.state.desired.directory[:TEXT_LIMIT]
        volume.for_numbers = VolumeProblem(
            path=directory, error=why[:TEXT_LIMIT], since=since, at_risk=risk
        )

    def _adopt(self, now: float) -> None:
        """Go on with the generation of a former coordinator, if its members come back."""
        state = self.state
        if state.term > 1 and state.last_known is not None and state.cut_off.due(now):
            state.require(LookForFormer(state.term))
        self._timers.adopting = not adopt(self.state, self._timers.adopt_until, now)
        if self.state.current is not None:
            self._timers.gathering = False

    def _oversee(self, current: CurrentGeneration, now: float) -> None:
        """Watch the current generation, and bring it to its end when it has to."""
        state = self.state
        self._timers.gathering = self._timers.gathering and not current.alive
        if current.alive:
            apply_transition(state, current, now)
        request_restart(state, current, now)
        if current.alive:
            request_checkpoint(state, current)
            watch(state, current, now)
            check_stragglers(state, current, now)
        failure = current.failure
        if failure is not None and state.start_failures.awaits_others(current, failure, now):
            return
        if failure is not None and current.leave_order is None:
            abort(state, current, now)
        if current.failure is not None and not current.finalized:
            pause = finalize(state, current, current.failure, self._backoff, now)
            self._timers.not_before = max(self._timers.not_before, now + pause)
            request_restart(state, current, now)

    def _form(self, now: float) -> None:
        """Begin the next generation as soon as nothing has to be waited for."""
        state = self.state
        if self._may_suspend(now):
            state.emit(now, "Suspended", "the job is suspended")
            state.conclude(Outcome(result="suspended", message="suspended"))
        if state.outcome is not None:
            return
        forming, number = self._is_forming(), self._numbers.reserved
        context = self._waiting_context(now)
        if forming:
            self._timers.note_size(context.size, now + state.desired.start_grace_seconds)
        waiting = find_waiting(context)
        if waiting is None and forming and number is not None:
            self._begin(number, now)
            waiting = find_waiting(self._waiting_context(now))
        state.waiting = waiting

    def _is_forming(self) -> bool:
        """Whether there is no generation, or the last one is over."""
        current = self.state.current
        return current.over if current is not None else not self._timers.adopting

    def _may_suspend(self, now: float) -> bool:
        """Whether suspension is desired, and no rank has state that it must still save."""
        state, current = self.state, self.state.current
        if state.outcome is not None or not state.desired.suspend or not self._is_forming():
            return False
        if current is None:
            return state.read_until >= self._timers.adopt_until
        if rank_not_out(state, current) is not None:
            return False
        # A next generation saves what parked ranks alone have, where it can be formed.
        return not (holds_unsaved(state, current) and self._waiting_context(now).size)

    def _waiting_context(self, now: float) -> WaitingContext:
        """What is known for the next generation. Members are counted only while one is formed."""
        state, timers = self.state, self._timers
        if not self._is_forming():
            return WaitingContext(state, timers, self._numbers, 0, 0, frozenset(), now)
        workers, holders = state.desired.workers, leaving_holders(state)
        if holders:
            fitting = sum(hello.index < workers for hello in self._candidates(holders))
        else:
            fitting = state.members.fitting(workers)
        size = size_of_next(fitting, state.desired)
        return WaitingContext(state, timers, self._numbers, fitting, size, holders, now)

    def _candidates(self, holders: Container[str]) -> list[Hello]:
        """The members that may take part: those that stay, and those that first have to save what
        only they hold. These come before their replacements.
        """
        members = self.state.members
        taken = {member.hello.index for name, member in members.leaving.items() if name in holders}
        return [
            member.hello
            for name, member in members.items()
            if name in holders or (member.leaving is None and member.hello.index not in taken)
        ]

    def _begin(self, number: GenerationNumber, now: float) -> None:
        state, before = self.state, self.state.current
        candidates = self._candidates(leaving_holders(state))
        previous = before.record if before else None
        chosen = choose(candidates, previous, state.desired, state.node)
        end = end_of(state, before, now)
        holdings = holdings_of(state, chosen, before)
        because = self._restored_from(holdings, before, end)
        snapshot = source_of(state, holdings) if because[0] in ("Peers", "Snapshot") else None
        failures = state.account.failures(before.record.failures if before else 0, end)
        desired = desired_of_next(state, because[0])
        record = make_record(number, chosen, desired, because, snapshot, failures)
        state.book_wait(now)
        state.current = CurrentGeneration(
            record,
            begun=now,
            last_report=now,
            last_activity=now,
            before=state.committed,
            previous_end=end,
        )
        if end is not None:
            state.recoveries.open(
                end, state.wall(end.time), record, _size_of(before, state), record.restored_from
            )
        self._numbers.use()
        self._timers.gathering, self._timers.gather_until = False, None
        message = Begin(record=record)
        for name in state.members:
            state.send(name, message)
        ranks = f"{record.world_size} ranks on {len(chosen)} workers"
        state.emit(now, "GenerationFormed", f"generation {number}: {ranks} ({record.reason})")
        self._reserve(now)

    def _restored_from(
        self, holdings: list[Holding], before: CurrentGeneration | None, end: GenerationEnd | None
    ) -> tuple[RestoredFrom, str]:
        """Where the state of the next generation comes from, and why there is a next one."""
        context = RestoreContext(tuple(holdings), started=self.state.started)
        excluded = failed_sources(before)
        if self.state.restarts_now:  # what lives is to be given up
            excluded = (*excluded, "Peers", "Snapshot")
        restored_from, why = choose_source(context, excluded)
        reason = f"{end.message if end else 'the workers are there'}; state: {why}"
        return restored_from, reason[:TEXT_LIMIT]


def _size_of(before: CurrentGeneration | None, state: State) -> int:
    """Ranks of the generation before; 0: unknown, until the history of the volume says it."""
    if before is not None:
        return before.world_size
    return state.last_known.world_size if state.last_known else 0
