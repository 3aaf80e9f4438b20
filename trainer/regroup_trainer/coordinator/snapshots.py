"""What the coordinator knows of memory snapshots: who holds which, which of them count, and when one is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from regroup_trainer.contract import (
    GenerationNumber,
    HeldSnapshot,
    Rung,
    SnapshotComplete,
    SnapshotNumber,
    SnapshotSource,
)
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.coordinator.state import State
from regroup_trainer.coordinator.world import World
from regroup_trainer.recovery import Holding, newest_snapshot
from regroup_trainer.snapshots.neighbours import failure_domains

HOLDERS = 2
"""Failure domains in which each shard of a complete snapshot is held, where there are so many: one may be lost."""


def usable(state: State, member: str) -> frozenset[tuple[SnapshotNumber, int]]:
    """The shards that a member holds of snapshots from which the next generation may resume."""
    return frozenset(
        (kept.number, shard)
        for kept in state.members[member].snapshots
        if _counts(state, kept.number.step, kept.number.generation) and not _is_outdated(state, kept.number)
        for shard in kept.shards
    )


def source_of(state: State, holdings: Sequence[Holding]) -> SnapshotSource | None:
    """The newest whole snapshot, and where each shard of it is."""
    number = newest_snapshot(holdings)
    if number is None:
        return None
    places = {
        shard: state.members[holding.member].hello.endpoint
        for holding in holdings
        for of, shard in holding.snapshots
        if of == number
    }
    return SnapshotSource(number=number, places=tuple(places[shard] for shard in range(number.shards)))


def tell_complete(state: State) -> None:
    """Tell all members once a newer snapshot of this world is held in enough places."""
    world = state.world
    if world is None:
        return
    members = [m for place in world.record.members if (m := state.members.get(place.member))]
    newest = max(_complete(world, members), default=None)
    if newest is None or (world.snapshot is not None and newest <= world.snapshot):
        return
    world.snapshot = newest
    for member in members:
        state.send(member.name, SnapshotComplete(number=newest))


def _complete(world: World, members: Sequence[Member]) -> list[SnapshotNumber]:
    domains = failure_domains(world.record.members)
    holders = min(HOLDERS, len({*domains.values()}))
    ours = [
        (kept, domains[member.name])
        for member in members
        for kept in member.snapshots
        if kept.number.generation == world.number
    ]
    times: Counter[SnapshotNumber] = Counter()
    for kept, _ in ours:
        times[kept.number] += len(kept.shards)
    likely = [number for number, count in times.items() if count >= holders * number.shards]  # most often none
    return [number for number in likely if _least_domains(number, ours) >= holders]


def _least_domains(number: SnapshotNumber, held: Sequence[tuple[HeldSnapshot, str]]) -> int:
    """In how many failure domains each of its shards is, at least; `held` says what is held and in which of them."""
    pairs = {(shard, domain) for kept, domain in held if kept.number == number for shard in kept.shards}
    times = Counter(shard for shard, _ in pairs)
    return min((times[shard] for shard in range(number.shards)), default=0)


def repeat_complete(state: State, member: str) -> None:
    """A member is back, and may not have heard it."""
    world = state.world
    if world is not None and world.snapshot is not None and member in state.members:
        state.send(member, SnapshotComplete(number=world.snapshot))


def failed_rungs(before: World | None) -> tuple[Rung, ...]:
    """Memory that could not even be read is not tried again."""
    failed = before is not None and before.record.rung == "L1" and before.broken is not None and not before.restored
    return ("L1",) if failed else ()


def _is_outdated(state: State, number: SnapshotNumber) -> bool:
    """Whether a checkpoint is newer."""
    saved = state.checkpoint
    return saved is not None and saved.step > number.step and _counts(state, saved.step, saved.generation)


def _counts(state: State, step: int, generation: GenerationNumber) -> bool:
    """The rule of `checkpoint.lineage.counts`, as far as it is known here; the ranks apply it in full."""
    return all(resumed >= step for later, resumed in state.resumed if later > generation)
