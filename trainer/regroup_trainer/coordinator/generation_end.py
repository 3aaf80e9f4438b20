"""How generations end: by an agreed transition, or by a failure whose cause is counted once. Pure.

Both ways lead to the next generation. A transition asks rank 0 for a last step that all ranks
commit. A failure aborts the collectives of the ranks that are left, and is finalized when its first
cause is certain.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import (
    CurrentGeneration,
    Failure,
    GenerationEnd,
    Transition,
)
from regroup_trainer.coordinator.formation import last_holders
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.coordinator.restart_budget import RestartBackoff, refusal
from regroup_trainer.coordinator.snapshot_registry import (
    is_reading,
    newest_usable,
    note_holders,
    sources_of_ranks,
    what_keeps_sources,
)
from regroup_trainer.coordinator.transitions import (
    AGREE_SECONDS,
    UNMANAGED_SECONDS,
    planned_transition,
)
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.coordinator_messages import (
    Decide,
    Exit,
    LeaveGeneration,
)
from regroup_trainer.protocol.exit_codes import HOPELESS_EXIT_CODES, PEER_LOST_EXIT_CODE
from regroup_trainer.protocol.job_status import FAILS_AT_START, Outcome
from regroup_trainer.protocol.message import TEXT_LIMIT
from regroup_trainer.protocol.rank_messages import Retained
from regroup_trainer.protocol.restore_source import is_whole
from regroup_trainer.protocol.strategies import STRATEGIES
from regroup_trainer.system import program_error

ABORT_SECONDS, LONGEST_ABORT_SECONDS = 1.0, 60.0
"""For the ranks of a failed generation to leave it. They get longer where a step takes longer,
since a rank that computes notices the end only afterwards.
"""
LAST_COPY_SECONDS = 10.0
"""At least so long for ranks of which one alone holds a part of the state. On a busy machine they
may not get to a core within a second, and a killed one takes that part with it.
"""
SAVE_SECONDS = 30.0
"""For a program without a Session to end a save after the loss of a peer."""
ABORT_STEPS = 2
"""The time of so many steps is what they get."""
KILL_SECONDS = 0.5
"""For the agents to kill the ranks that are stuck."""
FINALIZE_SECONDS = 0.02
"""After a rank's end, for the ends of its peers to arrive before the next generation is formed."""


def apply_transition(state: State, current: CurrentGeneration, now: float) -> None:
    """Ask the ranks for an agreed end when another generation is wanted.

    The generation fails when the ranks do not agree in time, so that they are ended by force.
    """
    wanted = _newly_wanted(state, current)
    if wanted is not None and (current.decision is None or wanted.decision > current.decision):
        current.decision, current.transition, current.decided_at = wanted.decision, wanted, now
        state.send(
            current.record.members[0].member,
            Decide(generation=current.number, decision=wanted.decision),
        )
    agreed = current.transition
    patience = UNMANAGED_SECONDS if current.unmanaged else AGREE_SECONDS
    since = current.decided_at
    if not current.unmanaged:
        since = max(since, current.last_report)
    if agreed is not None and state.reported_until - since > patience:
        late = (
            f"the ranks have not agreed on an end within {patience:.0f} s, and are ended by force"
        )
        how = "the program has no Session, so its ranks are stopped" if current.unmanaged else late
        message = f"{agreed.reason}; {how}"
        current.failure = Failure(now, agreed.cause, message, agreed.place)


def _newly_wanted(state: State, current: CurrentGeneration) -> Transition | None:
    """The planned end, considered anew only when something has changed on which it depends."""
    known = (state.members.revision, state.desired, current.running, current.unmanaged)
    if known == current.considered:
        return None
    current.considered = known
    return planned_transition(current, state.members, state.desired, state.node)


def abort(state: State, current: CurrentGeneration, now: float) -> None:
    """Have all ranks of a failed generation leave it.

    Without that, ranks that wait for a frozen peer would wait for ever.
    """
    stuck = current.failure.stuck if current.failure else None
    seconds = abort_seconds(current)
    if not current.unmanaged and _may_retain_state(current) and _has_last_copy(state, current):
        seconds = max(seconds, LAST_COPY_SECONDS)
    seconds += state.members.allowance(state.desired)  # a rank that is killed loses its state
    order = current.leave_order = LeaveGeneration(
        generation=current.number,
        seconds=seconds,
        save_seconds=_save_seconds(current),
        stuck=stuck,
    )
    current.leave_until = _leave_until(order, now)
    for place in current.record.members:
        if place.member in state.members:
            state.send(place.member, order)


def repeat_order(
    state: State, current: CurrentGeneration, order: LeaveGeneration, member: str, now: float
) -> None:
    """A member is back, and may have missed the order to leave. Only where a rank of it is inside
    is that waited for: nobody else gets longer.
    """
    state.send(member, order)
    if current.is_inside(member):
        current.leave_until = max(current.leave_until, _leave_until(order, now))


def _leave_until(order: LeaveGeneration, now: float) -> float:
    return now + order.seconds + order.save_seconds


def abort_seconds(current: CurrentGeneration) -> float:
    """How long a rank may take to leave this generation, which has failed.

    A program that receives no decisions gets a signal instead. Where that signal stands for a
    planned decision, the program gets as long as ranks that agree.
    """
    if current.unmanaged and current.transition is not None:
        return AGREE_SECONDS
    return min(
        LONGEST_ABORT_SECONDS, max(ABORT_SECONDS, ABORT_STEPS * current.usual_step_seconds())
    )


def _has_last_copy(state: State, current: CurrentGeneration) -> bool:
    """Whether a single rank, or the ranks of one member together, hold a part of the state that
    nobody else has.
    """
    desired, copies = current.record.desired, Counter[int]()
    layout, stuck = desired.train.parallelism, current.failure and current.failure.stuck
    is_shared = STRATEGIES[layout.strategy].has_shard_groups or layout.is_model_parallel
    for position, place in enumerate(current.record.members):
        if place.member in state.members:
            live = sum(rank not in current.exits and rank != stuck for rank in place.own_ranks)
            copies[position % desired.replica_group_size] += (
                int(live == place.ranks) if is_shared else live
            )
    return 1 in copies.values()


def _save_seconds(current: CurrentGeneration) -> float:
    """How long a program may end a save that the loss of a peer would cut off.

    A planned end is a signal to save, so it comes at once. Until then the program computes, and
    its log grows.
    """
    return SAVE_SECONDS if current.unmanaged and current.transition is None else 0.0


def rank_not_out(state: State, current: CurrentGeneration) -> int | None:
    """A rank that may keep its state, but has not left its failed generation yet; None: all have.

    The wait ends after the time that ranks get to leave, and their agents to kill them. What has
    arrived by then is read first: who is passed over has parked in vain.
    """
    if current.leave_order is None or not _may_retain_state(current):
        return None
    if state.reported_until >= current.leave_until + KILL_SECONDS:
        return None
    return current.rank_inside(state.members)


def _may_retain_state(current: CurrentGeneration) -> bool:
    """Whether ranks may keep their state in memory; those of a user's script do with a Session."""
    desired = current.record.desired
    strategy = STRATEGIES[desired.train.parallelism.strategy]
    return bool(desired.script) or strategy.recoverable_in_place


def finalize(
    state: State, current: CurrentGeneration, failure: Failure, backoff: RestartBackoff, now: float
) -> float:
    """Count a failure once its first cause is certain, and fail the job if a budget is used up.

    Returns the seconds to wait before the next generation.
    """
    if not _is_certain(state, current, failure, now):
        return 0.0
    current.finalized = True
    step = state.committed.step if state.committed else 0
    if failure.provisional:
        failure = current.failure = _with_all_there(failure, current)
    uncharged = failure.provisional or (failure.cause == "preemption" and failure.exit is not None)
    if uncharged and (why := state.uncharged_ends.count(current, failure, step, now)):
        state.account.restart("application")
        _fail(state, failure, why, now)
        return 0.0
    state.account.restart(failure.cause)
    if failure.cause == "hang":
        used, budget = state.account.used("hang") - 1, state.desired.max_hang_restarts
        if 0 <= budget <= used:
            spent = f"the budget of {budget} restarts after hangs is used up"
            _fail(state, failure, f"{spent} (restartPolicy.maxHangRestarts)", now)
    elif failure.cause == "application" and failure.exit is not None:
        _count_against_program(state, current, failure, failure.exit, now)
    elif not uncharged:
        return 0.0
    return backoff.pause(step, state.desired)


def _count_against_program(
    state: State, current: CurrentGeneration, failure: Failure, end: RankExit, now: float
) -> None:
    """Fail the job where its program is not worth another try, or has used up its budget."""
    state.detections["application"].add(failure.detect_seconds)
    state.emit(now, "RankFailed", failure.message, "Warning")
    cannot_start = state.start_failures.count(current, failure, now)
    why = refusal(end, state.account.used("application") - 1, state.desired)
    if why is not None:
        hopeless = end.exit_code in HOPELESS_EXIT_CODES
        at_start = hopeless and not state.start_failures.can_start
        _fail(state, failure, why, now, FAILS_AT_START if at_start else "")
    elif cannot_start is not None:
        _fail(state, failure, cannot_start, now, FAILS_AT_START)


def _with_all_there(failure: Failure, current: CurrentGeneration) -> Failure:
    """A connection was lost while all ranks and workers were there: the network's matter.

    A program without a Session also loses connections of its own, and those to ranks that have
    ended well before the others: its own matter.
    """
    message = f"{failure.message} (no rank and no worker was lost"
    gone = [rank for rank, end in current.finished.items() if end.reason == "completed"]
    if not current.unmanaged or (not gone and _in_collectives_alone(current)):
        return replace(failure, message=f"{message}: look at the network between them)")
    early = f"; rank {min(gone)} had ended well: let all ranks do the same steps" if gone else ""
    end = failure.exit and failure.exit.model_copy(update={"cause": "error"})
    return replace(
        failure, cause="application", message=f"{message}{early})", exit=end, provisional=False
    )


def _in_collectives_alone(current: CurrentGeneration) -> bool:
    """Whether each error of a rank that lost a connection is one of torch's collectives."""
    lost = [end for end in current.exits.values() if end.exit_code == PEER_LOST_EXIT_CODE]
    return bool(lost) and all(
        program_error.is_of_collective(program_error.exception_line(end.message)) for end in lost
    )


def _is_certain(state: State, current: CurrentGeneration, failure: Failure, now: float) -> bool:
    """A lost connection is the first cause only if no member was lost, and no rank ended by itself.

    On a busy machine an agent can report its rank's end long after the peers of that rank.
    """
    if not failure.provisional:
        return failure.exit is None or now >= failure.time + FINALIZE_SECONDS
    if rank_not_out(state, current) is not None:
        return False
    suspect = state.members.first_suspect(state.desired, now)
    until = failure.time + state.desired.heartbeat_milliseconds / 1000
    return suspect is None and state.reported_until >= until


def _fail(state: State, failure: Failure, why: str, now: float, reason: str = "") -> None:
    state.emit(now, "Failed", f"{failure.message}; {why}", "Warning")
    traceback, code = (failure.exit.message, failure.exit.exit_code) if failure.exit else ("", 1)
    sentence = f"{failure.message}; {why}\n"
    shown = program_error.excerpt(traceback, TEXT_LIMIT - len(sentence))
    message = f"{sentence}{shown}".strip()[:TEXT_LIMIT]
    outcome = Outcome(result="failed", message=message, exit_code=code or 1, reason=reason)
    state.book_wait(now)
    state.conclude(outcome)


def end_of(state: State, current: CurrentGeneration | None, now: float) -> GenerationEnd | None:
    """Why the last generation ended; None when there was none. A transition is counted here."""
    if current is None:
        return lost_at_once(state, now) if state.last_known else None
    if current.failure is not None:
        return current.failure
    done = current.transition
    if done is None:
        return GenerationEnd(now, "resize", "the ranks ended the generation by agreement")
    state.account.restart(done.cause)
    return GenerationEnd(now, done.cause, done.reason, done.place)


def lost_at_once(state: State, now: float) -> GenerationEnd:
    """The end of a generation that no process lived to report. It is counted here."""
    state.account.restart("infrastructure")
    return GenerationEnd(now, "infrastructure", "the coordinator and all workers were lost at once")


def leaving_holders(state: State) -> frozenset[str]:
    """The members that are to leave with the only live copy of a part of the state, while all parts
    of it live. The next generation includes them, to save the state.
    """
    current, members = state.current, state.members
    if not members.leaving or current is None or not current.over or not current.retained:
        return frozenset()
    positions = [
        position
        for name, member in members.leaving.items()
        if member.hello.index < state.desired.workers
        and (position := current.position_of(name)) is not None
    ]
    holders = last_holders(current.record, positions, members.stays)
    return holders if holders and is_whole(_parked(state, current)) else frozenset()


def holds_unsaved(state: State, current: CurrentGeneration) -> bool:
    """Whether members have a whole state which is to be saved, and newer than the newest
    checkpoint: that of parked ranks, or a memory snapshot. Ranks that end by agreement have saved.
    """
    if state.desired.checkpoint.on_termination != "Save":
        return False
    saved = state.checkpoint.step if state.checkpoint else 0
    snapshot = None if current.ended else newest_usable(state)
    parked = _parked(state, current)
    live = max((one.step for one in parked), default=0) if is_whole(parked) else 0
    return max(live, snapshot.step if snapshot else 0) > saved


def _parked(state: State, current: CurrentGeneration) -> list[Retained]:
    return [
        current.retained[rank]
        for place in current.record.members
        if place.member in state.members
        for rank in place.own_ranks
        if rank in current.retained
    ]


def release(state: State) -> None:
    """Release members that asked to leave, or are too many.

    A member is needed as long as its generation lives, or its ranks are still leaving it, or it is
    one of the `leaving_holders`, or others read a snapshot from it.
    """
    current, members, holders = state.current, state.members, leaving_holders(state)
    leaving = current is not None and not current.alive and rank_not_out(state, current) is not None
    needed = current if current is not None and (current.alive or leaving) else None
    reading = current is not None and is_reading(current)
    known = (state.desired, needed and needed.number, holders, reading)
    needless = [
        name
        for name in _to_look_at(state, known)
        if name in members and name not in holders and _is_needless(state, members[name], needed)
    ]
    sources = sources_of_ranks(state, needless)
    if sources:
        state.departures.kept_for = what_keeps_sources(state)
    for name in needless:
        if name in sources:
            state.departures.kept[name] = None
        elif (member := state.remove(name)) is not None:
            reason = member.leaving or "the job was scaled down"
            state.send(name, Exit(code=0, reason=reason))


def _to_look_at(state: State, known: object) -> list[str]:
    """The members of which it may have changed whether they are to be released: most times only
    those that have changed themselves.
    """
    members, departures = state.members, state.departures
    changed, members.changed = members.changed, []
    note_holders(state, changed)
    if known != departures.known:
        departures.known, departures.kept = known, {}
        return [*members]
    if departures.kept and what_keeps_sources(state) != departures.kept_for:
        kept, departures.kept = departures.kept, {}
        return [*changed, *kept]
    return changed


def _is_needless(state: State, member: Member, needed: CurrentGeneration | None) -> bool:
    """Whether it asked to leave, or is too many, and has no place in the generation that is needed
    yet.
    """
    surplus = member.hello.index >= state.desired.workers and needed is not None
    has_place = needed is not None and needed.position_of(member.name) is not None
    return (member.leaving is not None or surplus) and not has_place
