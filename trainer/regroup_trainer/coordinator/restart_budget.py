"""Whether a program that failed is started again, and when: its budget, the pauses, programs that
cannot start, and ends that are charged to nobody. Pure.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import re
from dataclasses import dataclass, field
from typing import Self

from regroup_trainer.coordinator.current_generation import CurrentGeneration, Failure
from regroup_trainer.errors import CheckpointError, ConfigurationError, NonFiniteError
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.exit_codes import (
    HOPELESS_EXIT_CODES,
    INTERRUPTED,
    TERMINATED,
    WRONG_USAGE,
)
from regroup_trainer.protocol.generation import MemberRecord
from regroup_trainer.protocol.ledger import FailedStarts
from regroup_trainer.protocol.message import TEXT_LIMIT
from regroup_trainer.system import program_error
from regroup_trainer.system.backoff import backoff_seconds

TRIES = 3
PROVEN_SECONDS = 60.0
"""A program that has lived so long can start."""
_OTHERS_SECONDS = 2.0
"""How long to wait for the other ranks to show the same error."""
MOST_IN_A_ROW = 9
LEAST_SECONDS = 600.0
"""A network that is away for minutes must not end a job."""
UNSEEN_SECONDS = 3600.0
"""A program that reports no steps has made some if its generation lived for so long: no time-out of
torch is as long.
"""
_FROM_OUTSIDE = (2, 9, 15)
"""SIGINT, SIGKILL and SIGTERM: what the program wrote last is not why it ended."""
_OUR_ERRORS = (ConfigurationError, CheckpointError, NonFiniteError)
_OURS = re.compile(rf"^(?:{'|'.join(error.__name__ for error in _OUR_ERRORS)}): ", re.MULTILINE)
"""What a rank writes when it ends with our WRONG_USAGE. One rank may be the only one to see it."""
_SENTENCE_CHARACTERS = 300
"""Of an exception that are shown in a sentence; the traceback follows it."""


@dataclass
class RestartBackoff:
    """Counts the restarts in a row that brought no step forward."""

    fruitless: int = 0
    best_step: int = 0
    """Highest step committed before the last failure."""

    def pause(self, step: int, desired: Desired) -> float:
        """Count a failure at `step`; returns the seconds to wait before the next generation."""
        self.fruitless = 1 if step > self.best_step else self.fruitless + 1
        self.best_step = max(self.best_step, step)
        return backoff_seconds(self.fruitless, desired.backoff_seconds, desired.max_backoff_seconds)


def refusal(end: RankExit, used: int, desired: Desired) -> str | None:
    """Why the job is not restarted after `used` counted restarts; None when it is."""
    if end.exit_code in HOPELESS_EXIT_CODES and not _is_usage_of_script(end, desired):
        why = HOPELESS_EXIT_CODES[end.exit_code]
        return f"exit code {end.exit_code} ({why}) is not worth another try"
    if 0 <= desired.max_restarts <= used:
        budget = f"the budget of {desired.max_restarts} restarts is used up"
        return f"{budget} (restartPolicy.maxRestarts)"
    return None


def describe(end: RankExit, place: MemberRecord | None) -> str:
    """One sentence on the end of a rank: where, how, and its exception."""
    where = f" on {place.where}" if place is not None else ""
    from_outside = end.cause != "peer" and end.signal in _FROM_OUTSIDE
    error = "" if from_outside else program_error.exception_line(end.message)
    if len(error) > _SENTENCE_CHARACTERS:
        error = f"{error[:_SENTENCE_CHARACTERS]}..."
    return f"rank {end.rank}{where} {end.how}" + (f": {error}" if error else "")


def is_asked_to_end(end: RankExit) -> bool:
    """Whether somebody outside of the job has asked a rank to end: by SIGTERM, as the shutdown of a
    node does, or by SIGINT. What its own agent sends has the cause `peer`.
    """
    return end.cause in ("signal", "error") and end.exit_code in (TERMINATED, INTERRUPTED)


@dataclass
class UnchargedEnds:
    """The ends of generations in a row that are charged to no budget, though all workers were
    there, and that brought no step forward. So many in a row are no passing trouble.
    """

    _number: int = 0
    _since: float = 0.0
    _best_step: int = 0

    def count(self, current: CurrentGeneration, failure: Failure, step: int, now: float) -> str:
        """Count one, with `step` committed; returns why the job must not be started again, or an
        empty text.
        """
        unseen = current.non_reporting and now >= current.begun + UNSEEN_SECONDS
        if self._number == 0 or unseen or step > self._best_step:
            self._number, self._since = 0, now
        self._best_step = max(self._best_step, step)
        self._number += 1
        if self._number < MOST_IN_A_ROW or now < self._since + LEAST_SECONDS:
            return ""
        ends = f"{self._number} generations in a row made no step that is new, and ended"
        if failure.cause == "preemption":
            return f"{ends} so, by SIGTERM or SIGINT: look for what sends it to the ranks"
        return (
            f"{ends} so, though all ranks and workers were there: look at the network between the "
            "workers: firewalls and network policies, the MTU, the interface (GLOO_SOCKET_IFNAME, "
            "NCCL_SOCKET_IFNAME), and the address where the program meets"
        )


@dataclass
class StartFailures:
    """The failures of a job's program, as long as nothing shows that it can start.

    More tries of a program that cannot start only cost time. What may pass (a full disk, a
    connection) and what only one node shows is left to pauses and budgets.
    """

    can_start: bool = False
    """Whether a rank has reported a step or lived for PROVEN_SECONDS."""
    since: float = math.inf
    """When the generation began that a former coordinator saw last, until the first failure here.
    """
    port_races: int = 0
    """How often another process took the port that was chosen for the program."""
    _error: str = ""
    _tries: int = 0
    _machines: set[str] = field(default_factory=set)
    """The machines that have shown the error."""

    @classmethod
    def resume(cls, term: int, known: FailedStarts | None, wall_offset: float) -> Self:
        """Those of a coordinator's start: after another one, what is known of its tries."""
        if known is None:
            return cls(can_start=term > 1)
        since = known.since - wall_offset
        return cls(since=since, _error=known.error, _tries=known.tries, _machines={*known.machines})

    def record(self, since: float) -> FailedStarts:
        """What the next coordinator is to know; `since` is the wall clock of the newest begin."""
        machines = tuple(sorted(self._machines)[:2])
        return FailedStarts(
            error=self._error[:TEXT_LIMIT],
            tries=min(self._tries, TRIES),
            machines=machines,
            since=since,
        )

    def awaits_others(self, current: CurrentGeneration, failure: Failure, now: float) -> bool:
        """Whether to give the other ranks time to show the error of a rank that cannot start."""
        end, missing = failure.exit, current.world_size - len(current.exits) - len(current.finished)
        if end is None or missing <= 0 or now >= failure.time + _OTHERS_SECONDS:
            return False
        return not self._proves(current, now) and _is_certain(end, current.record.desired)

    def count(self, current: CurrentGeneration, failure: Failure, now: float) -> str | None:
        """Count the end of a generation; returns why the job must not be started again."""
        end = failure.exit
        self.can_start = self._proves(current, now)
        self.since = math.inf
        error = _error_of(end) if end is not None else ""
        if self.can_start or end is None or not error or program_error.end_may_pass(end.message):
            self._tries = 0
            return None
        if error != self._error or self._tries == 0:
            self._error, self._tries, self._machines = error, 0, set()
        self._tries += 1
        self._machines |= {
            _machine(place)
            for rank, other in current.exits.items()
            if _error_of(other) == error and (place := current.place_of_rank(rank))
        }
        shown = [_error_of(other) == error for other in current.exits.values()]
        if (
            _is_certain(end, current.record.desired)
            and all(shown)
            and len(shown) == current.world_size
        ):
            return "all ranks show the same error, which every try would show"
        machines = {_machine(place) for place in current.record.members}
        only_here = len(self._machines) == 1 and len(machines) > 1
        if self._tries < TRIES or only_here:
            return None
        return f"{TRIES} tries in a row ended with this error before the first step"

    def _proves(self, current: CurrentGeneration, now: float) -> bool:
        return (
            self.can_start
            or current.first_commit is not None
            or now >= min(current.begun, self.since) + PROVEN_SECONDS
        )


def _machine(place: MemberRecord) -> str:
    """The workers of a run on one machine, each a node of its own, meet at a loopback address."""
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(place.address).is_loopback:
            return "this machine"
    return place.node


def _is_certain(end: RankExit, desired: Desired) -> bool:
    """Whether every try shows this error, if all ranks show it: one of syntax, import or usage."""
    error = _error_of(end)
    return program_error.is_certain(error) or bool(error and _is_usage_of_script(end, desired))


def _is_usage_of_script(end: RankExit, desired: Desired) -> bool:
    """Whether a script says itself that it was called wrongly, as argparse does: one node alone may
    lack the file that an argument names.
    """
    return bool(desired.script) and end.exit_code == WRONG_USAGE and not _OURS.search(end.message)


def _error_of(end: RankExit) -> str:
    """What identifies the error of a rank; empty where its program did not end by itself."""
    is_crash = end.cause == "signal" and end.signal in program_error.CRASHES
    if end.cause != "error" and not is_crash:
        return ""
    return program_error.identity(end.message, end.exit_code)
