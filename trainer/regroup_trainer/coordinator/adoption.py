"""A coordinator that has just started adopts the generation that returning agents report. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration, Failure, LastCommit
from regroup_trainer.coordinator.registration import resync
from regroup_trainer.coordinator.reports import count_loss
from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.generation import GenerationRecord

LONGEST_SECONDS = 10.0
"""A member that shows life but says no hello for so long after the others is lost."""


def adopt(state: State, until: float, now: float) -> bool:
    """Adopt the newest generation once all its members are back; False while it is waited for.

    Training never stopped, so a whole generation goes on under its old number. From `until` on, a
    missing member is lost, unless its hello may have arrived unread. A member whose heartbeats
    arrive is only late: it may take seconds to notice that the connection to the former coordinator
    is gone. A newer generation that trains without the members that are here is waited for as long
    as it does.
    """
    if state.cut_off.trains_without(state.former.number, now):
        return False
    record, missing = state.former.record, state.former.missing
    if record is None:
        return True
    if missing and _may_come(state, missing, until):
        return False
    back = _back(state, record)
    _adopt(state, record, back, now)
    lost = next(iter(missing.values()), None)
    if lost is not None and state.current is not None:
        who = f"worker {lost.pod} on node {lost.node}"
        message = f"{who} has not connected to the new coordinator in time, so it counts as lost"
        state.current.failure = Failure(now, "infrastructure", message, lost)
    for hello in back:
        resync(state, hello, now)
    return True


def _back(state: State, record: GenerationRecord) -> list[Hello]:
    """The hellos of the members that report this generation."""
    hellos = [member.hello for member in state.members.values()]
    return [h for h in hellos if h.record is not None and h.record.number == record.number]


def _may_come(state: State, missing: Iterable[str], until: float) -> bool:
    known = state.read_until
    if known < until:
        return True
    return known < until + LONGEST_SECONDS and all(_is_alive(state, name) for name in missing)


def _is_alive(state: State, name: str) -> bool:
    last_heartbeat = state.unknown_members.get(name, float("-inf"))
    return state.read_until - last_heartbeat < state.desired.timeout_milliseconds / 1000


def _adopt(state: State, record: GenerationRecord, back: Sequence[Hello], now: float) -> None:
    restored = {hello.restored.rank: hello.restored for hello in back if hello.restored is not None}
    known = state.last_known
    newest = known.generation if known is not None else None
    is_unknown = newest is not None and record.number > newest
    is_uncounted = is_unknown or 0 not in restored
    unseen = known if is_unknown and record.number.term < state.term else None
    if unseen is not None and state.account.catch_up(record.failures):
        state.recoveries.open_unseen(record, unseen)
    state.current = CurrentGeneration(
        record,
        begun=now,
        last_report=now,
        last_activity=now,
        adopted=True,
        unseen=unseen,
        before=state.committed if is_uncounted else None,
        restored=restored,
    )
    if 0 in restored and restored[0].restored_from != "Script":
        step = restored[0].step
        state.resumed.append((restored[0].generation, step))
        if is_uncounted:
            count_loss(state, restored[0], state.current)
        # The step from which it resumed may be below the one that the operator knew.
        before = state.committed
        state.committed = LastCommit(step, before.time if before else state.wall(now))
    for member in state.members.values():
        state.current.copies.hold(member.name, member.snapshots)
    progresses = [hello.progress for hello in back if hello.progress is not None]
    furthest = max(progresses, key=lambda progress: progress.step, default=None)
    if furthest is not None:
        state.start_failures.can_start = True
        state.current.report_seconds = furthest.report_seconds
        state.committed = LastCommit(furthest.step, furthest.time)
        state.started = not state.current.unmanaged
    state.account.adopt(
        next((progress for progress in progresses if progress.rank == 0), None), now
    )
