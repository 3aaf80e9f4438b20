"""Which members hold which memory snapshots, which of them count, and which are complete. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.protocol.agent_messages import HeldSnapshot
from regroup_trainer.protocol.coordinator_messages import SnapshotComplete
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    RestoredFrom,
    SnapshotNumber,
    SnapshotSource,
)
from regroup_trainer.protocol.restore_source import Holding, newest_snapshot
from regroup_trainer.snapshots.neighbours import failure_domains

HOLDERS = 2
"""Failure domains that hold each shard of a complete snapshot, so that one of them may be lost."""


def usable(state: State, member: str) -> frozenset[tuple[SnapshotNumber, int]]:
    """The shards that a member holds of snapshots from which the next generation may resume."""
    return frozenset(
        (held.number, shard)
        for held in state.members[member].snapshots
        if _counts(state, held.number.step, held.number.generation)
        and not _is_outdated(state, held.number)
        for shard in held.shards
    )


def source_of(state: State, holdings: Sequence[Holding]) -> SnapshotSource | None:
    """The newest whole snapshot, and an agent that holds it for each shard."""
    number = newest_snapshot(holdings)
    if number is None:
        return None
    places = {
        shard: state.members[holding.member].hello.endpoint
        for holding in holdings
        for of, shard in holding.snapshots
        if of == number
    }
    return SnapshotSource(
        number=number, places=tuple(places[shard] for shard in range(number.shards))
    )


def announce_complete(state: State) -> None:
    """Send SnapshotComplete to all members once a newer snapshot is held in enough places."""
    current = state.current
    if current is None:
        return
    members = [m for place in current.record.members if (m := state.members.get(place.member))]
    newest = max(_complete(current, members), default=None)
    if newest is None or (current.snapshot is not None and newest <= current.snapshot):
        return
    current.snapshot = newest
    for member in members:
        state.send(member.name, SnapshotComplete(number=newest))


def _complete(current: CurrentGeneration, members: Sequence[Member]) -> list[SnapshotNumber]:
    domains = failure_domains(current.record.members)
    holders = min(HOLDERS, len({*domains.values()}))
    ours = [
        (held, domains[member.name])
        for member in members
        for held in member.snapshots
        if held.number.generation == current.number
    ]
    times: Counter[SnapshotNumber] = Counter()
    for held, _ in ours:
        times[held.number] += len(held.shards)
    # The count of copies is quick to look at, and most often too low.
    likely = [number for number, count in times.items() if count >= holders * number.shards]
    return [number for number in likely if _least_domains(number, ours) >= holders]


def _least_domains(number: SnapshotNumber, held: Sequence[tuple[HeldSnapshot, str]]) -> int:
    """The number of failure domains that hold the least protected shard.

    `held` pairs what a member holds with its failure domain.
    """
    pairs = {
        (shard, domain)
        for snapshot, domain in held
        if snapshot.number == number
        for shard in snapshot.shards
    }
    times = Counter(shard for shard, _ in pairs)
    return min((times[shard] for shard in range(number.shards)), default=0)


def repeat_announcement(state: State, member: str) -> None:
    """A member is back, and may have missed the last announcement."""
    current = state.current
    if current is not None and current.snapshot is not None and member in state.members:
        state.send(member, SnapshotComplete(number=current.snapshot))


def failed_sources(before: CurrentGeneration | None) -> tuple[RestoredFrom, ...]:
    """Sources that the next generation must not try again: snapshots that no rank could read."""
    failed = (
        before is not None
        and before.record.restored_from == "Snapshot"
        and before.failure is not None
        and not before.restored
    )
    return ("Snapshot",) if failed else ()


def _is_outdated(state: State, number: SnapshotNumber) -> bool:
    """Whether a checkpoint is newer."""
    saved = state.checkpoint
    return (
        saved is not None
        and saved.step > number.step
        and _counts(state, saved.step, saved.generation)
    )


def _counts(state: State, step: int, generation: GenerationNumber) -> bool:
    """The rule of `checkpoint.lineage.counts`, as far as it is known here.

    The ranks apply the rule in full.
    """
    return all(resumed >= step for later, resumed in state.resumed if later > generation)
