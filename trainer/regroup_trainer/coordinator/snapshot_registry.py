"""Which members hold which memory snapshots, which of them count, and which are complete. Pure."""

from __future__ import annotations

from collections.abc import Container, Sequence

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.protocol.agent_messages import HeldSnapshot, Hello
from regroup_trainer.protocol.coordinator_messages import SnapshotComplete
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    RestoredFrom,
    SnapshotNumber,
    SnapshotSource,
)
from regroup_trainer.protocol.rank_messages import Retained
from regroup_trainer.protocol.restore_source import Holding, newest_snapshot


def holdings_of(
    state: State, chosen: Sequence[Hello], before: CurrentGeneration | None
) -> list[Holding]:
    """What is in memory: of the next generation's members, and of the others that live."""
    first = {hello.member: state.members[hello.member] for hello in chosen}
    fit = _usable(state)
    return [
        Holding(name, _live(name, before) if name in first else (), _shards(member, fit))
        for name, member in {**first, **state.members}.items()
    ]


def _live(member: str, before: CurrentGeneration | None) -> tuple[Retained, ...]:
    """The states that its ranks retain."""
    place = before.place_of(member) if before else None
    if before is None or place is None:
        return ()
    return tuple(before.retained[rank] for rank in place.own_ranks if rank in before.retained)


def _usable(state: State) -> set[SnapshotNumber]:
    """The snapshots from which the next generation may resume."""
    numbers = {held.number for member in state.members.values() for held in member.snapshots}
    return {
        number
        for number in numbers
        if _counts(state, number.step, number.generation) and not _is_outdated(state, number)
    }


def _shards(
    member: Member, numbers: Container[SnapshotNumber]
) -> frozenset[tuple[SnapshotNumber, int]]:
    return frozenset(
        (held.number, shard)
        for held in member.snapshots
        if held.number in numbers
        for shard in held.shards
    )


def newest_usable(state: State) -> SnapshotNumber | None:
    """The newest snapshot of which members hold every shard, and from which the next generation may
    resume.
    """
    return newest_snapshot(holdings_of(state, (), None))


def is_source(state: State, member: Member) -> bool:
    """Whether ranks read a snapshot from this member's agent, or will have to after a failure: no
    member that stays has what it holds.
    """
    current, members = state.current, state.members
    if current is None or current.ended:
        return False
    if current.alive:
        source = current.record.snapshot if is_reading(current) else None
        return source is not None and member.hello.endpoint in source.places
    newest = {number} if (number := newest_usable(state)) else set()
    others = (_shards(one, newest) for name, one in members.items() if members.stays(name))
    return bool(_shards(member, newest).difference(*others))


def is_reading(current: CurrentGeneration) -> bool:
    """Whether ranks of this generation still read a snapshot. All have their state once a step is
    committed; a successor does not know of each rank that it has.
    """
    if not current.alive or current.record.restored_from != "Snapshot":
        return False
    return current.first_commit is None and len(current.restored) < current.world_size


def source_of(state: State, holdings: Sequence[Holding]) -> SnapshotSource | None:
    """The newest whole snapshot, and an agent that holds it for each shard: the first one, since
    members of the next generation come before others, which may leave.
    """
    number = newest_snapshot(holdings)
    if number is None:
        return None
    places = {
        shard: state.members[holding.member].hello.endpoint
        for holding in reversed(holdings)
        for of, shard in holding.snapshots
        if of == number
    }
    return SnapshotSource(
        number=number, places=tuple(places[shard] for shard in range(number.shards))
    )


def hold(state: State, member: Member, snapshots: tuple[HeldSnapshot, ...]) -> None:
    """An agent reports what it holds."""
    member.snapshots = snapshots
    if state.current is not None:
        _forget_older(state.current, member)
        state.current.copies.hold(member.name, member.snapshots)
    announce_complete(state)


def _forget_older(current: CurrentGeneration, member: Member) -> None:
    """What the agent forgets, or has forgotten, by the newest announcement. It does not say so: it
    would be one more message of each agent for each snapshot.
    """
    if (complete := current.snapshot) is not None:
        member.snapshots = tuple(
            held for held in member.snapshots if not held.number.is_older(complete)
        )


def announce_complete(state: State) -> None:
    """Send SnapshotComplete to all members once a newer snapshot is held in enough places."""
    current = state.current
    newest = current.copies.complete() if current is not None else None
    if current is None or newest is None:
        return
    if current.snapshot is not None and newest <= current.snapshot:
        return
    current.snapshot = newest
    message = SnapshotComplete(number=newest)
    for place in current.record.members:
        if (member := state.members.get(place.member)) is not None:
            _forget_older(current, member)
            state.send(place.member, message)


def repeat_announcement(state: State, member: str) -> None:
    """A member is back, and may have missed the last announcement."""
    current = state.current
    if current is not None and current.snapshot is not None and member in state.members:
        _forget_older(current, state.members[member])
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
