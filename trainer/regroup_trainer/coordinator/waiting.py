"""Why no generation trains: one ordered table, read by the status and by the core. Pure.

The core forms the next generation as soon as nothing in the table holds. The status shows the same
reason and message to the operator and the user.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.coordinator.formation import least_workers, wanted_workers
from regroup_trainer.coordinator.generation_end import rank_not_out
from regroup_trainer.coordinator.reserved_numbers import LONGEST_RETRY_SECONDS, ReservedNumbers
from regroup_trainer.protocol.job_status import Waiting
from regroup_trainer.protocol.message import MOST_NAMED, named
from regroup_trainer.protocol.waiting_reasons import WaitingReason

LONGEST_RETURN_SECONDS = 10.0
"""After the first hello of a former coordinator's generation, for the others to follow it."""
IMPORTING_SECONDS = 5.0
"""A worker that imports torch reports it twice a second."""


@dataclass
class FormationTimers:
    """When the next generation may be formed. Times are monotonic seconds."""

    adopt_until: float
    """Until then the members of a former coordinator's generation may come back."""
    return_until: float
    """Until then one of them may come back to save the state of a job to suspend."""
    not_before: float
    """The end of the pause after a failure."""
    adopt_by: float = math.inf
    """No return of a member extends `adopt_until` beyond it."""
    adopting: bool = False
    """A former coordinator's generation is waited for."""
    gathering: bool = True
    """Wait a little for more than the least workers: none trained before, or too few are left."""
    gather_until: float | None = None
    """The end of that wait; None until the least workers are here."""

    def forgive(self, seconds: float) -> None:
        """The coordinator was paused for so long: it waits for workers for as much longer."""
        self.adopt_until += seconds
        self.adopt_by += seconds
        self.return_until += seconds
        if self.gather_until is not None:
            self.gather_until += seconds

    def note_return(self, now: float, timeout: float, *, is_first: bool) -> None:
        """A member of the former generation is back. The others have `timeout` seconds from then
        on, since to read the hellos of thousands takes longer. `is_first`: of its generation.
        """
        if is_first:
            self.adopt_by = now + LONGEST_RETURN_SECONDS
        self.adopt_until = max(self.adopt_until, min(now + timeout, self.adopt_by))

    def note_size(self, size: int, gather_until: float) -> None:
        """The wait for more workers begins when there are enough for a generation."""
        if not size:
            self.gathering, self.gather_until = True, None
        elif self.gather_until is None:
            self.gather_until = gather_until


@dataclass(frozen=True)
class WaitingContext:
    """What the reasons look at."""

    state: State
    timers: FormationTimers
    numbers: ReservedNumbers
    fitting: int
    """Members that may take part in the next generation, of an index that is wanted."""
    size: int
    """Members of the next generation; 0 when there are too few."""
    holders: frozenset[str]
    """The `leaving_holders`."""
    now: float

    @property
    def missing(self) -> int:
        """Workers that the next generation lacks to be full."""
        return wanted_workers(self.state.desired) - self.size


ReasonCheck = Callable[[WaitingContext], str | None]
"""What is waited for, in one sentence; None where the reason does not hold."""


def _failed(context: WaitingContext) -> str | None:
    current = context.state.current
    if current is None or current.failure is None or current.finalized:
        return None
    return f"{current.failure.message}; the ranks of generation {current.number} are being stopped"


def _ending(context: WaitingContext) -> str | None:
    current = context.state.current
    return ending_message(current) if current is not None and current.alive else None


def ending_message(current: CurrentGeneration) -> str | None:
    """What a generation does that ends by agreement; None for another."""
    if current.transition is None:
        return None
    reason = current.transition.reason
    if current.unmanaged:  # it receives SIGTERM in a moment
        return f"generation {current.number} is about to be stopped: {reason}"
    return f"generation {current.number} ends after a step that its ranks agree on: {reason}"


def _starting(context: WaitingContext) -> str | None:
    current = context.state.current
    if current is None or not current.alive:
        return None
    workers = count_of_workers(len(current.record.members))
    doing = "its ranks load their state or compute the first step"
    return f"generation {current.number} is starting on {workers}: {doing}"


def count_of_workers(count: int) -> str:
    """A number of workers in words."""
    return f"{count} worker{'s' if count != 1 else ''}"


def _volume_is_away(context: WaitingContext) -> str | None:
    """What a generation that begins or ends lacks, or else what keeps one from being formed."""
    current, problem = context.state.current, context.state.volume.for_ranks
    if current is not None and current.alive:
        if problem is None:
            return None
        then = f" Then it ends: {current.transition.reason}" if current.transition else ""
        return f"generation {current.number} waits for the volume: {problem.sentence}{then}"
    numbers, directory = context.numbers, context.state.desired.directory
    if not numbers.refusal or numbers.ahead:
        return None
    what = f"no generation can begin: its number cannot be reserved in {directory}"
    if numbers.is_unanswered:
        node = f" of node {context.state.node}" if context.state.node else ""
        return f"{what}: {numbers.refusal} (check the volume's server and the mount{node})"
    return (
        f"{what}: {numbers.refusal} (free space, or make it writable for the pods' user; the next "
        f"try follows within {LONGEST_RETRY_SECONDS:.0f} s)"
    )


def _trains_elsewhere(context: WaitingContext) -> str | None:
    """Its steps would be lost if another generation began."""
    state = context.state
    trains = state.cut_off.trains_without(state.former.number, context.now)
    if not context.timers.adopting or not trains:
        return None
    return (
        f"generation {state.cut_off.number} of a former coordinator trains on, cut off from this "
        "one; it takes over when these workers connect, or make no more steps"
    )


def _former_workers(context: WaitingContext) -> str | None:
    """A new coordinator gives the workers of a former one the time to come back."""
    state, timers = context.state, context.timers
    if timers.adopting:
        missing = state.former.missing
        late = named((place.pod for place in missing.values()), len(missing))
        return f"waiting for {late} to connect to the new coordinator, or else to count as lost"
    successor = state.term > 1 and state.current is None
    may_come = successor and state.read_until < timers.adopt_until
    wanted = context.missing > 0 or state.desired.suspend
    if not context.size or not may_come or not wanted:
        return None
    return "waiting for more workers of the former coordinator to connect"


def _nobody_yet(context: WaitingContext) -> str | None:
    """A successor must be found first; the workers may well train meanwhile."""
    early = context.now < context.timers.adopt_until
    if context.state.members or not early:
        return None
    return f"waiting for workers: none has connected yet{_absent(context)}"


def _too_few_workers(context: WaitingContext) -> str | None:
    if context.size:
        return None
    least, have = least_workers(context.state.desired), context.fitting
    missing = max(1, least - have)
    more = f"{missing} more worker{'s' if missing > 1 else ''}"
    what = f"waiting for {more}: have {have} of at least {least}{_absent(context)}"
    return f"{what}{_who_leaves_later(context)}"


def _who_leaves_later(context: WaitingContext) -> str:
    """A worker that was asked to leave and is still needed, and what for; empty: there is none."""
    leaving, holders = context.state.members.leaving, context.holders
    if holders:
        pod = next(member.hello.pod for name, member in leaving.items() if name in holders)
        return f"; {pod} keeps the only live copy of the state until it is killed"
    source = next((name for name in context.state.departures.kept if name in leaving), None)
    if source is None:
        return ""
    what = "its part of a memory snapshot, which no other has"
    return f"; {leaving[source].hello.pod} is to leave, and stays until then for {what}"


def _absent(context: WaitingContext) -> str:
    """What the first workers that are not here do, in brackets, as their pods' names begin; empty
    when all are here.
    """
    state = context.state
    here = state.members.staying
    count = state.desired.workers - state.members.fitting(state.desired.workers)
    absent = (index for index in range(state.desired.workers) if index not in here)
    importing: list[str] = []
    others: list[str] = []
    for index in islice(absent, MOST_NAMED):
        at = state.importing.get(index, -math.inf)
        pods = importing if context.now < at + IMPORTING_SECONDS else others
        pods.append(f"{state.desired.job}-w{index}")
    parts = [f"importing torch: {', '.join(importing)}"] if importing else []
    what = "logs" if state.desired.namespace == "local" else "pods"  # `regroup run` has no pods
    parts += [f"see the {what} of {', '.join(others)}"] if others else []
    parts += [f"{count - MOST_NAMED} more are not here"] if count > MOST_NAMED else []
    return f" ({'; '.join(parts)})" if parts else ""


def _worker_is_suspect(context: WaitingContext) -> str | None:
    desired = context.state.desired
    member = context.state.members.first_suspect(desired, context.now)
    if member is None:
        return None
    what = "its heartbeats are late" if member.closed_at is None else "its connection closed"
    who = f"{member.hello.pod} on node {member.hello.node}"
    seconds = desired.timeout_milliseconds / 1000 + member.allowance(desired)
    return f"waiting for {who}: {what}; it answers within {seconds:.1f} s or counts as lost"


def _backing_off(context: WaitingContext) -> str | None:
    left = context.timers.not_before - context.now
    if left <= 0:
        return None
    return f"waiting {left:.0f} s before the next try, since failures came without a step between"


def _rank_leaves(context: WaitingContext) -> str | None:
    current = context.state.current
    rank = rank_not_out(context.state, current) if current is not None else None
    if current is None or rank is None:
        return None
    place = current.place_of_rank(rank)
    where = f" on {place.where}" if place is not None else ""
    late = "its agent kills it if it takes too long"
    return f"waiting for rank {rank}{where} to leave generation {current.number}: {late}"


def _gathering(context: WaitingContext) -> str | None:
    until = context.timers.gather_until
    if not context.timers.gathering or context.missing <= 0 or until is None:
        return None
    wanted = wanted_workers(context.state.desired)
    grace = context.state.desired.start_grace_seconds
    text = f"waiting up to {grace:.0f} s for {context.missing} more of {wanted} workers"
    here = f"the job then trains with {context.size}"
    return f"{text}; {here}" if context.now < until else None


def _reserving(context: WaitingContext) -> str | None:
    if context.numbers.reserved is not None:
        return None
    where = context.state.desired.directory
    return f"reserving the number of the next generation on the volume ({where})"


REASONS: tuple[tuple[WaitingReason, ReasonCheck], ...] = (
    (WaitingReason.GenerationFailed, _failed),
    (WaitingReason.VolumeUnavailable, _volume_is_away),
    (WaitingReason.GenerationEnding, _ending),
    (WaitingReason.GenerationStarting, _starting),
    (WaitingReason.CutOffGeneration, _trains_elsewhere),
    (WaitingReason.FormerWorkersAwaited, _former_workers),
    (WaitingReason.NoWorkersYet, _nobody_yet),
    (WaitingReason.TooFewWorkers, _too_few_workers),
    (WaitingReason.WorkerSuspect, _worker_is_suspect),
    (WaitingReason.BackOff, _backing_off),
    (WaitingReason.RanksLeaving, _rank_leaves),
    (WaitingReason.GatheringWorkers, _gathering),
    (WaitingReason.ReservingNumber, _reserving),
)
"""The first reason that holds is taken.

The reasons after GenerationStarting, and VolumeUnavailable, are those why no next generation is
formed yet.
"""


def find_waiting(context: WaitingContext) -> Waiting | None:
    """Why no generation trains; None while one does, or when the next can be formed."""
    current = context.state.current
    if current is not None and _trains(context.state, current):
        return None
    for reason, check in REASONS:
        text = check(context)
        if text is not None:
            return Waiting.of(reason, _after_failure(current, text))
    return None


def _trains(state: State, current: CurrentGeneration) -> bool:
    """Whether it makes steps. One that is to end makes none while its volume refuses the save."""
    is_held_up = current.decision is not None and state.volume.for_ranks is not None
    return current.alive and (current.running or current.unmanaged) and not is_held_up


def _after_failure(current: CurrentGeneration | None, text: str) -> str:
    """The failure that led here comes first."""
    failure = current.failure if current is not None and current.finalized else None
    return f"{failure.message}; {text}" if failure is not None else text
