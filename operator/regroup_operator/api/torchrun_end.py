"""How an attempt of stock torchrun ends, by what its processes show: the rule for clusters and for
local runs. Pure.

A rank that ended after its script's last line has ended well, however its process ended
(`agent/torchrun_rank.py` sees to that). The first worker that ends well closes the attempt: stock
torchrun lets nobody join any more. So whoever failed then cannot be made good, and the next attempt
begins. The script continues from what it saved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from regroup_trainer.protocol.job_status import FAILS_AT_START

AttemptOutcome = Literal["open", "complete", "again"]
_HOPELESS = "another try would fail too"
_CANNOT_START = re.compile(r"rank \d+ failed with exit code \d+[^\n:]*; it cannot start")
_GAVE_UP = re.compile(rf"ChildFailedError|torchrun gives up after|{_HOPELESS}")
"""In the last message of an agent that will not start its ranks again."""
_IN_VAIN = "a worker waits to train again with others that have ended well"
_CLOSED = "RendezvousClosedError"
_LOST_PEER = re.compile(
    r"DistStoreError: wait timeout after \d+ms, keys: \S*torchelastic/(?:role_info|assigned_ranks)/"
)
"""Where agents have met, they exchange ranks through the store. These are torch's own keys."""
_LEFT_OUT = "\n[...]\n"
_LEAST_FOR_BOTH_ENDS = 100
"""Characters; less shows the end alone."""
_RANK_FAILED = re.compile(r"rank \d+ (?:failed|was ended) ")


@dataclass(frozen=True)
class AttemptState:
    """What is seen of the processes of an attempt."""

    well: int
    """Workers that ended well."""
    running: int
    failures: tuple[str, ...]
    """The last message of each worker that failed and was not replaced."""
    waits_in_vain: bool
    """Whether the store has seen a worker that waits for others which have ended well."""
    fewest: int
    """The least number of workers that train."""


@dataclass(frozen=True)
class Judgement:
    """Whether an attempt goes on, completes the job, or has to be followed by the next one."""

    outcome: AttemptOutcome
    failure: str = ""
    """What failed after others had ended well; empty when that is not why the next one begins."""
    is_closed: bool = False
    """Whether it begins since torchrun has closed the rendezvous."""


def judge(attempt: AttemptState) -> Judgement:
    """What becomes of an attempt."""
    if _is_closed(attempt):
        return Judgement("again", is_closed=True)
    failure = failed_rank(attempt)
    if attempt.waits_in_vain:
        return Judgement("again", failure or _IN_VAIN)
    if attempt.running or not attempt.well:
        return Judgement("open")
    if attempt.well < attempt.fewest or failure:
        return Judgement("again", failure)
    return Judgement("complete")


def _is_closed(attempt: AttemptState) -> bool:
    """Whether nobody can meet any more, although nobody has ended well. Stock torchrun closes the
    rendezvous when an agent fails, too: whoever takes its place is refused for ever.
    """
    refused = any(map(was_refused, attempt.failures))
    return refused and not attempt.running and not attempt.well


def was_refused(message: str) -> bool:
    """Whether an agent with this last message came where torchrun had closed the rendezvous: that
    is no failure of its own.
    """
    return _CLOSED in message and not _is_of_rank(message)


def lost_peer(message: str) -> bool:
    """Whether an agent with this last message failed since another one died while they met."""
    return _LOST_PEER.search(message) is not None and not _is_of_rank(message)


def _is_of_rank(message: str) -> bool:
    """Whether an agent ended since its ranks failed, which may have written anything."""
    return names_failed_rank(message) or gave_up(message)


def failed_rank(attempt: AttemptState) -> str:
    """The message about a rank that failed; empty when no rank did."""
    return next((text for text in attempt.failures if names_failed_rank(text)), "")


def names_failed_rank(message: str) -> bool:
    """Whether the last message of an agent is ours, about a rank that failed."""
    return _RANK_FAILED.match(message) is not None


def gave_up(message: str) -> bool:
    """Whether an agent with this last message will not start its ranks again."""
    return _GAVE_UP.search(message) is not None


def cannot_start(attempt: AttemptState) -> str:
    """The message of a rank whose program cannot start, where every worker has shown that; empty
    where it may be the matter of one machine.
    """
    shown = [text for text in attempt.failures if _CANNOT_START.match(text)]
    others = attempt.running or attempt.well or len(shown) < len(attempt.failures)
    return "" if others or not shown else shown[0]


def why_it_ended(message: str, max_restarts: int) -> tuple[str, str]:
    """The reason and a sentence for a job whose agent will not start its ranks again."""
    if _HOPELESS in message:
        return FAILS_AT_START, "the ranks would wait for each other in vain"
    if _CANNOT_START.match(message):
        return FAILS_AT_START, "the program ends with this error whenever it is started"
    budget = f"spec.restartPolicy.maxRestarts={max_restarts}"
    return "RestartsExhausted", f"torchrun gave up ({budget})"


def shorten(message: str, limit: int) -> str:
    """The first line, which says what happened, and of the rest the beginning and the end."""
    first, _, rest = message.strip().partition("\n")
    room = limit - len(first) - 1
    if not rest or room <= 0:
        return first[:limit]
    if len(rest) > room > _LEAST_FOR_BOTH_ENDS:
        head = room // 2
        rest = rest[:head] + _LEFT_OUT + rest[head + len(_LEFT_OUT) - room :]
    return f"{first}\n{rest[-room:]}"
