"""The status that a coordinator reports: phase, message and the rest, read from its state. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.coordinator.formation import wanted_workers
from regroup_trainer.coordinator.hangs import stragglers_of
from regroup_trainer.coordinator.membership import overload
from regroup_trainer.coordinator.waiting import count_of_workers, ending_message
from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.desired import Desired, LastKnown
from regroup_trainer.protocol.generation import Decision, GenerationNumber, MemberRecord
from regroup_trainer.protocol.job_status import (
    ASK_LINE,
    WATCH_LINE_BYTES,
    CoordinatorPhase,
    CoordinatorStatus,
    MemberStatus,
    RequestAnswer,
    WorkerStep,
    WorkerSteps,
)
from regroup_trainer.protocol.ledger import FailedStarts
from regroup_trainer.protocol.message import TEXT_LIMIT, named

CONTACT_SECONDS = 5.0
"""How recent a sign of life must be."""
MORE_IN_CONTACT = 1024
"""Agents that a status names at most beyond one of each worker: in former pods of a worker. The
operator takes as many.
"""
SHOWN_SECONDS = 0.001
"""How long a status is shown for each of its members while only steps change: some hundred times
what it takes to build it. So are the steps of workers.
"""
MEMBERS_KEPT = 8192
"""Parts of statuses, 1.3 kB each."""
NEWS_SECONDS = 0.5
"""The least time between two lines of a watch with a status."""
PROGRESS_SECONDS = (25.0, 35.0)
"""Between them where nothing changes: drawn anew each time, so that watches that began together do
not stay together.
"""


class StatusLines:
    """The lines of one watch, `every` so many seconds at least. Times are monotonic seconds. `draw`
    gives numbers from 0 to 1.
    """

    def __init__(self, every: float, draw: Callable[[], float]) -> None:
        self._every = every
        self._draw = draw
        self._essence: object = None
        self._status_at = self._progress_at = self._line_at = -math.inf

    def next_line(
        self, essence: object, status: Callable[[], CoordinatorStatus], now: float
    ) -> bytes | None:
        """The line that is due, without its end; None while none is. `essence` is another one where
        there is news: only for a line is a status made.
        """
        changed = essence != self._essence
        if now >= (self._status_at + NEWS_SECONDS if changed else self._progress_at):
            self._essence, self._status_at, self._line_at = essence, now, now
            least, longest = PROGRESS_SECONDS
            self._progress_at = now + least + (longest - least) * self._draw()
            return _line_of(status())
        if changed or now - self._line_at < self._every:
            return None
        self._line_at = now
        return b""

    def pauses(self, now: float) -> tuple[float, float]:
        """Seconds in which no change leads to a line, and until a line is due without one."""
        news, empty = self._status_at + NEWS_SECONDS, self._line_at + self._every
        return max(0.0, news - now), max(0.0, empty - now)


def _line_of(status: CoordinatorStatus) -> bytes:
    line = status.model_dump_json().encode()
    return line if len(line) < WATCH_LINE_BYTES else ASK_LINE


def essence_of(state: State, now: float) -> object:
    """Equal as long as nothing changes but the numbers that every step changes. Much cheaper than a
    status, which describes each member.
    """
    contacts = agents_in_contact(state, now)
    lost = [(hello.member, why) for hello, why in state.lost_members.values()]
    members = state.members.revision, lost, contacts and frozenset(contacts)
    return _without_members(state, 0).essence(), members


def make_status(state: State, sequence: int) -> CoordinatorStatus:
    """The answer to GET /v1/status."""
    members = (*_here(state), *_lost(state))
    return _without_members(state, sequence).model_copy(update={"members": members})


def _without_members(state: State, sequence: int) -> CoordinatorStatus:
    current = state.current
    record = current.record if current else None
    return CoordinatorStatus(
        term=state.term,
        sequence=sequence,
        revision=state.desired.revision,
        phase=phase_of(state),
        message=message_of(state)[:TEXT_LIMIT],
        waiting=state.waiting if state.outcome is None else None,
        generation=record.number if record else None,
        world_size=record.world_size if record and current and current.alive else 0,
        spares=spares_of(state),
        progress=state.progress,
        total_steps=_total_steps(state),
        evaluation=state.evaluation,
        checkpoint=state.checkpoint,
        checkpoint_answer=_answer(state.pending_request, state.checkpoint_answer),
        restart_answer=_answer(state.pending_restart, state.restart_answer),
        ledger=state.account.ledger(),
        stragglers=stragglers_of(current) if current and current.alive else (),
        stall=current.stall if current and current.alive else None,
        recoveries=state.recoveries.records(),
        events=state.journal.events(),
        failed_starts=_failed_starts(state),
        volume=state.volume.problem,
        outcome=state.outcome,
    )


def _answer(pending: str, answer: RequestAnswer | None) -> RequestAnswer | None:
    return RequestAnswer(request=pending) if pending else answer


class ShownStatus:
    """The status as whoever asks gets it. That of a large job is built again for news at once, but
    not for each step.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._newest: CoordinatorStatus | None = None
        self._news: object = None
        self._until = -math.inf

    def at(self, now: float, sequence: int, news: object, after: float = -1) -> CoordinatorStatus:
        """The status with this sequence, or an earlier one above `after` that lacks no news. `news`
        is another object where something else than the progress has changed.
        """
        newest, is_old = self._newest, news is not self._news or now >= self._until
        if newest is None or is_old or newest.sequence <= after:
            newest = self._newest = make_status(self._state, sequence)
            self._news = news
            self._until = now + SHOWN_SECONDS * len(newest.members)
        return newest


class ShownSteps:
    """The answer to GET /steps, as whoever asks gets it. Anybody may, without the token: it is made
    as seldom as a status.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._text = ""
        self._until = -math.inf

    def text(self, now: float) -> str:
        """As JSON."""
        if now >= self._until:
            self._text = steps_of_workers(self._state).model_dump_json()
            self._until = now + SHOWN_SECONDS * len(self._state.members)
        return self._text


def handed_over(state: State) -> Desired:
    """What another process of this coordinator begins with: what the job should be, and what was
    counted so far. Nobody else reports it before the next change of the spec.
    """
    current, committed = state.current, state.committed
    known = None
    if current is not None and current.alive and committed is not None:
        known = LastKnown(
            step=committed.step,
            time=committed.time,
            world_size=current.world_size,
            generation=current.number if 0 in current.restored else _before(current.number),
        )
    changes = {
        "seed": state.account.ledger(),
        "last_known": known,
        "failed_starts": _failed_starts(state),
        "checkpoint_request": state.pending_request,
        "restart_request": state.pending_restart,
    }
    return state.desired.model_copy(update=changes)


def _before(number: GenerationNumber) -> GenerationNumber:
    """Any later one of this coordinator is above it."""
    return number._replace(n=number.n - 1)


def _failed_starts(state: State) -> FailedStarts | None:
    failures, current = state.start_failures, state.current
    if current is None or failures.can_start or current.first_commit is not None:
        return None
    return failures.record(state.wall(min(current.begun, failures.since)))


def agents_in_contact(state: State, now: float) -> tuple[str, ...] | None:
    """The agents that are no members, and showed life a moment ago, the newest first. None where
    there are more than the workers have, or where agents of an older release do not give their
    names.
    """
    if not state.agents_give_names:
        return None
    fresh = [name for name, at in state.unknown_members.items() if now - at < CONTACT_SECONDS]
    if len(fresh) > state.desired.workers + MORE_IN_CONTACT:
        return None
    return tuple(sorted(fresh, key=lambda name: -state.unknown_members[name]))


def _total_steps(state: State) -> int:
    if state.desired.script:
        return state.current.total_steps if state.current else 0
    return state.desired.train.training.steps  # which may grow within a generation


def phase_of(state: State) -> CoordinatorPhase:
    """What the job does, in one word: its outcome once it has one."""
    if state.outcome is not None:
        return state.outcome.result
    current = state.current
    if current is None:
        return "waiting"
    if not current.alive:
        return "resizing" if current.failure is None else "recovering"
    if current.decision is not None:
        return "stopping" if current.decision == Decision.STOP else "resizing"
    if current.running or current.unmanaged:
        return "running"
    if current.previous_end is None:
        return "starting"
    return "resizing" if current.previous_end.cause == "resize" else "recovering"


def message_of(state: State) -> str:
    """One sentence: what the job does now, or why it does not train."""
    if state.outcome is not None:
        return state.outcome.message
    if state.waiting is not None:
        return state.waiting.message
    return _doing(state, state.current) if state.current is not None else ""


def _doing(state: State, current: CurrentGeneration) -> str:
    ending = ending_message(current)
    if ending is not None:
        return ending
    doing = _running(state, current) if current.unmanaged else _training(state, current)
    late = overload(state.members.overloaded.values(), state.desired)
    return f"{doing}; {late}" if late else doing


def _running(state: State, current: CurrentGeneration) -> str:
    """What a program without a Session does, as far as it reports it."""
    whole = f" of {current.total_steps}" if current.total_steps else ""
    at = f": step {current.progress.step}{whole}" if current.progress else ""
    script = " ".join(state.desired.script[: 2 if state.desired.script[0] == "-m" else 1])
    doing = f"running {script}{at} on {_workers(state, current)}{_waiting_spares(state)}"
    if not current.busy:
        return doing
    busy = current.busy[min(current.busy)]
    since = f" since step {busy.step}" if busy.step else ""
    return f"{doing}; rank {busy.rank} is busy ({busy.doing}){since}: hangs are not watched"


def _training(state: State, current: CurrentGeneration) -> str:
    step, steps = current.progress.step if current.progress else 0, _total_steps(state)
    whole = f" of {steps}" if steps else ""
    doing = (
        f"training: step {step}{whole}"
        if step < steps or not steps
        else f"saving the result of {steps} steps"
    )
    failed_save = f"; {state.failed_save}" if state.failed_save else ""
    return (
        f"{doing} on {_workers(state, current)}{_waiting_spares(state)}{failed_save}"
        f"{_volume(state)}"
    )


def _volume(state: State) -> str:
    problem = state.volume.problem
    return f"; the volume is unavailable: {problem.what}" if problem else ""


def _workers(state: State, current: CurrentGeneration) -> str:
    return f"{count_of_workers(len(current.record.members))}{_missing(state, current)}"


def _missing(state: State, current: CurrentGeneration) -> str:
    wanted = wanted_workers(state.desired)
    if len(current.record.members) >= wanted:
        return ""
    known = {m.hello.index for m in state.members.values()} | state.lost_members.keys()
    absent = [f"{state.desired.job}-w{n}" for n in range(state.desired.workers) if n not in known]
    reasons = [_lost_in_words([*state.lost_members.values()])] if state.lost_members else []
    if absent:
        has = "has" if len(absent) == 1 else "have"
        reasons.append(f"{named(absent, len(absent))} {has} not connected yet")
    if state.desired.replica_group_size > 1 and (idle := _without_rank(state, current)):
        pods = named(idle, len(idle))
        reasons.append(f"{pods} without a rank: its replica group is not whole")
    return f" of {wanted} wanted" + (f" ({'; '.join(reasons)})" if reasons else "")


def _lost_in_words(lost: list[tuple[Hello, str]]) -> str:
    """The first reason stands for all."""
    was = "was" if len(lost) == 1 else "were"
    pods = named((hello.pod for hello, _ in lost), len(lost))
    return f"{pods} {was} lost: {lost[0][1]}"


def spares_of(state: State) -> int:
    """How many warm workers wait for a place; none while the generation lacks members."""
    current = state.current
    if current is None or not current.alive:
        return 0
    if len(current.record.members) < wanted_workers(state.desired):
        return 0
    return sum(current.place_of(name) is None for name in state.members)


def _waiting_spares(state: State) -> str:
    count = spares_of(state)
    return f", {count} spare{'s' if count > 1 else ''}" if count else ""


def _without_rank(state: State, current: CurrentGeneration) -> list[str]:
    members = sorted(state.members.values(), key=lambda member: member.hello.index)
    return [member.hello.pod for member in members if current.place_of(member.name) is None]


def _here(state: State) -> list[MemberStatus]:
    members = sorted(state.members.values(), key=lambda member: member.hello.index)
    current = state.current
    places = [current.place_of(member.name) if current else None for member in members]
    return [_member(m.hello, place, m.step, "") for m, place in zip(members, places, strict=True)]


def steps_of_workers(state: State) -> WorkerSteps:
    """How far each worker is that has ranks."""
    placed = (member for member in _here(state) if member.rank is not None)
    return WorkerSteps(workers=tuple(WorkerStep(index=m.index, step=m.step) for m in placed))


def _lost(state: State) -> list[MemberStatus]:
    return [
        _member(hello, None, 0, why) for _index, (hello, why) in sorted(state.lost_members.items())
    ]


def _member(hello: Hello, place: MemberRecord | None, step: int, lost: str) -> MemberStatus:
    rank = place.first_rank if place else None
    return _made_once((hello.member, hello.index, hello.pod, hello.node), rank, step, lost)


@lru_cache(maxsize=MEMBERS_KEPT)
def _made_once(
    who: tuple[str, int, str, str], rank: int | None, step: int, lost: str
) -> MemberStatus:
    """Most are as they were in the last status."""
    member, index, pod, node = who
    return MemberStatus(
        member=member, index=index, pod=pod, node=node, rank=rank, step=step, lost=lost
    )
