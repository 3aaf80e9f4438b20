"""The recovery ladder: where the state of the next generation comes from. Pure and torch-free.

The rungs are a table, cheapest first; the first whose condition holds for what the members report is taken. A member
that reports nothing but its life has no state to offer, so the checkpoint rung always holds at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from regroup_trainer.config import ParallelismConfig
from regroup_trainer.contract import Kept, Rung, SnapshotNumber


def outlives_its_world(layout: ParallelismConfig) -> bool:
    """Whether a rank's state is worth keeping when its world breaks: some other rank may hold the same, or the rest.

    Not so where each rank holds what no other has (`fsdp`, and the optimizer's state of `zero`).
    """
    return layout.strategy in ("ddp", "hsdp")


@dataclass(frozen=True)
class Holding:
    """What one member of the next world has in its memory."""

    member: str
    live: tuple[Kept, ...] = ()
    """What its rank processes that live, and left the old world in order, keep in their memory."""
    snapshots: frozenset[tuple[SnapshotNumber, int]] = frozenset()
    """Shards of memory snapshots that it holds whole, own or kept for a neighbour."""


@dataclass(frozen=True)
class Situation:
    """What the choice rests on."""

    members: tuple[Holding, ...]
    started: bool
    """Whether any generation has had a state before."""


def _is_first_start(situation: Situation) -> str | None:
    return None if situation.started else "nothing has been trained yet"


def _lives_in_peers(situation: Situation) -> str | None:
    alive = [kept for holding in situation.members for kept in holding.live]
    step = max((kept.step for kept in alive), default=0)
    owned = {kept.shard for kept in alive if kept.step == step or (kept.prepared and kept.step == step - 1)}
    if not alive or len(owned) < alive[0].shards:
        return None
    return f"every shard lives at step {step}"


def newest_snapshot(members: Iterable[Holding]) -> SnapshotNumber | None:
    """The newest memory snapshot of which members hold every shard."""
    kept: frozenset[tuple[SnapshotNumber, int]] = frozenset().union(*(holding.snapshots for holding in members))
    held = Counter(number for number, _ in kept)
    return max((number for number, shards in held.items() if shards == number.shards), default=None)


def _is_in_snapshots(situation: Situation) -> str | None:
    newest = newest_snapshot(situation.members)
    return f"the memory snapshot of step {newest.step} is whole" if newest else None


def _is_on_the_volume(_situation: Situation) -> str | None:
    return "the newest checkpoint that verifies"


LADDER: tuple[tuple[Rung, Callable[[Situation], str | None]], ...] = (
    ("start", _is_first_start),
    ("L0", _lives_in_peers),
    ("L1", _is_in_snapshots),
    ("L2", _is_on_the_volume),
)
"""Rung -> the reason why it can be taken, None when it can't."""


def choose_rung(situation: Situation, excluded: Sequence[Rung] = ()) -> tuple[Rung, str]:
    """The cheapest safe rung and why. `excluded` are rungs that failed or exceeded their deadline in this recovery."""
    for rung, reason_of in LADDER:
        reason = None if rung in excluded else reason_of(situation)
        if reason is not None:
            return rung, reason
    raise ValueError(f"no rung is left: {', '.join(excluded)} are excluded, and the checkpoint rung can't be")
