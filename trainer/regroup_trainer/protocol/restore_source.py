"""Where the state of the next generation comes from: one table of sources. Pure and torch-free.

The sources are in order of their cost. The first one is taken whose condition holds for what the
members reported. The checkpoint on the volume comes last, and can always be tried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from regroup_trainer.protocol.generation import RestoredFrom, SnapshotNumber
from regroup_trainer.protocol.rank_messages import Retained


@dataclass(frozen=True)
class Holding:
    """What one member of the next generation has in its memory."""

    member: str
    live: tuple[Retained, ...] = ()
    """The state of its parked ranks."""
    snapshots: frozenset[tuple[SnapshotNumber, int]] = frozenset()
    """The shards of memory snapshots that it holds, its own and its neighbour's."""


@dataclass(frozen=True)
class RestoreContext:
    """What the choice of the source depends on."""

    members: tuple[Holding, ...]
    started: bool
    """Whether any generation has had a state before."""


def _is_first_start(context: RestoreContext) -> str | None:
    return None if context.started else "nothing has been trained yet"


def _is_in_peers(context: RestoreContext) -> str | None:
    alive = [state for holding in context.members for state in holding.live]
    step = max((state.step for state in alive), default=0)
    return f"live ranks hold every shard at step {step}" if is_whole(alive) else None


def is_whole(alive: Collection[Retained]) -> bool:
    """Whether ranks hold every shard of the newest step that one of them holds, or can complete."""
    step = max((state.step for state in alive), default=0)
    owned = {
        state.shard
        for state in alive
        if state.step == step or (state.prepared and state.step == step - 1)
    }
    return len(owned) >= max((state.shards for state in alive), default=1)


def newest_snapshot(members: Iterable[Holding]) -> SnapshotNumber | None:
    """The newest memory snapshot of which members hold every shard."""
    shards_held: frozenset[tuple[SnapshotNumber, int]] = frozenset().union(
        *(holding.snapshots for holding in members)
    )
    held = Counter(number for number, _ in shards_held)
    return max((number for number, shards in held.items() if shards == number.shards), default=None)


def _is_in_snapshots(context: RestoreContext) -> str | None:
    newest = newest_snapshot(context.members)
    return f"the memory snapshot of step {newest.step} is whole" if newest else None


def _is_on_the_volume(_context: RestoreContext) -> str | None:
    return "the newest checkpoint that verifies"


RESTORE_SOURCES: tuple[tuple[RestoredFrom, Callable[[RestoreContext], str | None]], ...] = (
    ("Nothing", _is_first_start),
    ("Peers", _is_in_peers),
    ("Snapshot", _is_in_snapshots),
    ("Checkpoint", _is_on_the_volume),
)
"""Source -> the reason why it can be taken, None when it cannot."""


_DESCRIPTIONS: Mapping[RestoredFrom, str] = {
    "Nothing": "the beginning",
    "Peers": "live ranks",
    "Snapshot": "a memory snapshot",
    "Checkpoint": "a checkpoint",
    "Script": "the script's own files",
}


def describe_source(source: RestoredFrom | None) -> str:
    """Where the state of a generation comes from, to be read in a sentence. None: nothing yet."""
    return _DESCRIPTIONS[source or "Nothing"]


def choose_source(
    context: RestoreContext, excluded: Sequence[RestoredFrom] = ()
) -> tuple[RestoredFrom, str]:
    """The cheapest safe source, and why. `excluded` sources have failed in this recovery.

    Raises ValueError when all sources are excluded.
    """
    for restored_from, reason_of in RESTORE_SOURCES:
        reason = None if restored_from in excluded else reason_of(context)
        if reason is not None:
            return restored_from, reason
    raise ValueError(
        f"no source is left: {', '.join(excluded)} are excluded, but Checkpoint must never be"
    )
