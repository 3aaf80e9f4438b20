"""Hangs and stragglers: a generation that lives but commits no step, or only as fast as its slowest
rank. Pure.

Every rank waits in a collective for the one that does not come, so the wait itself does not show
which rank is to blame. The stacks do. The culprit is a rank that sends none, or else one that is
outside torch while others wait inside it. So ranks are asked for their stacks before the generation
is ended.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration, Failure
from regroup_trainer.coordinator.journal import EVENTS_APART
from regroup_trainer.protocol.agent_messages import StackFrame
from regroup_trainer.protocol.coordinator_messages import Diagnose
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import RestoredFrom
from regroup_trainer.protocol.job_status import Stall, Straggler
from regroup_trainer.protocol.message import named
from regroup_trainer.protocol.rank_messages import AGENT_PROGRESS_SECONDS

LEAST_SECONDS = 60.0
LEAST_GIVEN_SECONDS = 2 * AGENT_PROGRESS_SECONDS
"""A shorter deadline could pass between two reports of ranks that make steps."""
STEPS = 10
"""Without a given deadline, a generation hangs after the mean time of so many steps."""
STALL_SECONDS = 60.0
"""The status of a job says so when no work was done for so long."""
STALL_STEPS = 5
"""And for the usual time of so many steps."""
FIRST_STEP_SECONDS = 600.0
"""Least deadline before the first step of a generation that begins with new processes, which load,
allocate and compile; and of a script, which may not report that it evaluates or saves.
"""
LONG_BUSY_SECONDS = 3600.0
"""A script that is busy for so long is worth an event."""
ANSWER_SECONDS = 2.0
"""How long to wait for the stacks."""
CHECK_SECONDS = 1.0
RANKS_A_SECOND = 8192
"""More ranks than that are checked less often."""
MOST_REPORTED = 64


def deadline_seconds(current: CurrentGeneration, desired: Desired) -> float:
    """How long this generation may do nothing; infinite for a program that reports nothing, or is
    busy with something else than steps.

    A script may report each step, each hundredth or each epoch, and evaluate in between. So it gets
    a multiple of its longest time without a report.
    """
    has_session = current.record.restored_from == "Peers"  # no other script keeps its state
    if current.busy or (current.non_reporting and not has_session):
        return math.inf
    given = float(desired.progress_timeout_seconds)
    given = given and max(given, LEAST_GIVEN_SECONDS)
    if current.unmanaged and not has_session:
        return given or max(FIRST_STEP_SECONDS, STEPS * current.report_seconds)
    if current.progress is None:
        sources = (report.restored_from for report in current.restored.values())
        if may_start_slowly(current.record.restored_from, sources):
            return max(given, FIRST_STEP_SECONDS)
    return given or max(LEAST_SECONDS, STEPS * current.usual_step_seconds())


def may_start_slowly(planned: RestoredFrom, reported: Iterable[RestoredFrom | None]) -> bool:
    """Whether the ranks of a generation may load, allocate or compile before their first step
    without a report. `planned` is where the state was to come from, `reported` from where those
    ranks have it whose state is in place.

    Where the state of live ranks goes on, a rank that needs time reports that it is busy. So the
    lack of any report is a hang, also while some have not reported their state.
    """
    return planned != "Peers" or any(source not in (None, "Peers") for source in reported)


def watch(state: State, current: CurrentGeneration, now: float) -> None:
    """Ask for stacks when nothing was done for too long; end the generation once they are here.

    Time counts up to the moment until which all reports are known: what waits unread may show work.
    """
    known = state.reported_until
    idle = known - current.last_activity
    current.stall = _stall(state, current, idle)
    if current.busy and idle > LONG_BUSY_SECONDS:
        _report_busy(state, current, idle, now)
    if current.diagnosed_at is not None and current.last_activity > current.diagnosed_at:
        current.diagnosed_at, current.frames = None, {}
    if current.diagnosed_at is None:
        if _may_hang(state, idle) and idle > _deadline(state, current):
            _ask_for_stacks(state, current, idle, now)
    elif len(current.frames) == current.world_size or known - current.diagnosed_at > ANSWER_SECONDS:
        _end(state, current, now)


def _stall(state: State, current: CurrentGeneration, idle: float) -> Stall | None:
    """What is to be shown of a generation that has made steps and may hang; None of one that
    works, is busy with something else, or has no deadline.
    """
    if idle <= STALL_SECONDS or current.progress is None:
        return None
    usual = current.report_seconds if current.unmanaged else current.usual_step_seconds()
    limit = deadline_seconds(current, state.desired)
    if idle <= STALL_STEPS * usual or math.isinf(limit):
        return None
    since = state.wall(current.last_activity)
    return Stall(since=since, step=current.progress.step, limit_seconds=limit)


def _may_hang(state: State, idle: float) -> bool:
    """Whether it is worth to look for the deadline: none is shorter."""
    return idle > (state.desired.progress_timeout_seconds or LEAST_SECONDS)


def _deadline(state: State, current: CurrentGeneration) -> float:
    """An overloaded machine delays the steps as it delays heartbeats."""
    return deadline_seconds(current, state.desired) + state.members.allowance(state.desired)


def _report_busy(state: State, current: CurrentGeneration, idle: float, now: float) -> None:
    busy = current.busy[min(current.busy)]
    if current.reported_busy == busy:
        return
    current.reported_busy = busy
    place = current.place_of_rank(busy.rank)
    who = f"rank {busy.rank} on {place.where}" if place else f"rank {busy.rank}"
    text = (
        f"{who} has been busy ({busy.doing}) for {idle / 60:.0f} minutes: hangs are not watched "
        "until its next step"
    )
    state.emit(now, "BusyForLong", text, "Warning")


def _ask_for_stacks(state: State, current: CurrentGeneration, idle: float, now: float) -> None:
    current.diagnosed_at = now
    message = Diagnose(generation=current.number)
    for place in current.record.members:
        state.send(place.member, message)
    at = f"after step {current.progress.step}" if current.progress else "before its first step"
    what = f"no rank of generation {current.number} has reported progress for {idle:.0f} s {at}"
    text = f"{what}: all ranks are asked for their stacks, which their logs show"
    state.emit(now, "HangDetected", text, "Warning")


def _end(state: State, current: CurrentGeneration, now: float) -> None:
    found = culprit(current.frames, current.world_size)
    place = current.place_of_rank(found.rank) if found else None
    who = (
        f"rank {found.rank} on {place.where} {found.where}"
        if found and place
        else "no rank stands out (compare the stacks in the logs of the workers)"
    )
    idle = now - current.last_activity
    message = f"no progress for {idle:.0f} s: {who}"
    state.emit(now, "HangDiagnosed", message, "Warning")
    state.detections["hang"].add(idle)
    stuck = found.rank if found else None
    current.failure = Failure(now, "hang", message, place, detect_seconds=idle, stuck=stuck)


@dataclass(frozen=True)
class Culprit:
    """The rank for which the others wait."""

    rank: int
    where: str
    """What it does, to be read after its name."""


def culprit(innermost: Mapping[int, StackFrame | None], world_size: int) -> Culprit | None:
    """The rank that does not come to the collective; None when the stacks do not show it.

    `innermost` is where the ranks are that have answered; None: their answer shows it not.
    """
    frames = {rank: frame for rank, frame in sorted(innermost.items()) if frame is not None}
    without = [rank for rank in range(world_size) if rank not in frames]
    if without and frames:
        return Culprit(without[0], "does not answer (is its process stopped, or its node frozen?)")
    apart = [rank for rank, frame in frames.items() if "/torch/" not in frame.file]
    if len(apart) == world_size > 1:
        apart = _in_the_minority(frames)
    if not apart:
        return None
    file, line, function = frames[apart[0]]
    return Culprit(apart[0], f"is in {function} ({file}:{line})")


def _in_the_minority(frames: Mapping[int, StackFrame]) -> list[int]:
    """The ranks outside the place where most are.

    Where the host waits for a device, no frame of torch shows it.
    """
    usual, times = Counter(frames.values()).most_common(1)[0]
    if times <= len(frames) / 2:
        return []
    return [rank for rank, frame in frames.items() if frame != usual]


# --- stragglers -----------------------------------------------------------------------------------


def check_stragglers(state: State, current: CurrentGeneration, now: float) -> None:
    """Emit the events of ranks that have become stragglers."""
    pause = max(CHECK_SECONDS, current.world_size / RANKS_A_SECOND)
    if now - current.stragglers_checked_at < pause:
        return
    current.stragglers_checked_at = now
    ranks = current.pace.check(now, state.desired.straggler_percent / 100)
    for text in _of_stragglers([_straggler(current, rank) for rank in ranks]):
        state.emit(now, "StragglerDetected", text, "Warning")


def _of_stragglers(found: list[Straggler]) -> list[str]:
    """The messages of their events: one, where many ranks became stragglers at once."""
    if (count := len(found)) <= EVENTS_APART:
        return [_how_slow(straggler) for straggler in found]
    pods = dict.fromkeys(straggler.pod for straggler in found)
    slowest = max(found, key=lambda straggler: straggler.percent)
    on = named(pods, len(pods))
    return [f"{count} ranks are stragglers, on {on}; the slowest: {_how_slow(slowest)}"]


def _how_slow(straggler: Straggler) -> str:
    return (
        f"rank {straggler.rank} on {straggler.pod} ({straggler.node}) computes "
        f"{straggler.percent} % longer than the median rank"
    )


def stragglers_of(current: CurrentGeneration) -> tuple[Straggler, ...]:
    """The stragglers, the slowest first, at most `MOST_REPORTED`."""
    found = [_straggler(current, rank) for rank in current.pace.stragglers]
    return tuple(sorted(found, key=lambda straggler: -straggler.percent)[:MOST_REPORTED])


def _straggler(current: CurrentGeneration, rank: int) -> Straggler:
    place = current.place_of_rank(rank)
    assert place is not None, f"generation {current.number} has no rank {rank}"
    percent = current.pace.stragglers[rank]
    return Straggler(
        rank=rank, member=place.member, pod=place.pod, node=place.node, percent=percent
    )
