"""Which members hold which memory snapshots, which of them count, and which are complete. Pure."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

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
from regroup_trainer.snapshots.neighbours import ShardHolders


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
    return {number for number in numbers if _is_usable(state, number)}


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


def sources_of_ranks(state: State, names: Collection[str]) -> set[str]:
    """Those of these members from whose agents ranks read a snapshot, or will have to after a
    failure: no member that stays has what they hold.
    """
    current, some = state.current, [state.members[name] for name in names]
    if not some or current is None or current.ended:
        return set()
    if current.alive:
        source = current.record.snapshot if is_reading(current) else None
        places = {*source.places} if source is not None else set()
        return {one.name for one in some if one.hello.endpoint in places}
    holders, newest = _count_holders(state), _newest_counted(state)
    if newest is None:
        return set()
    return {one.name for one in some if holders.is_needed(newest, one.snapshots)}


def _count_holders(state: State) -> ShardHolders:
    """Who holds what. Most failures end without a member that would go, so it is counted only when
    there is one, and from then on as it changes.
    """
    departures = state.departures
    if departures.holders is None:
        departures.holders = ShardHolders()
        note_holders(state, state.members)
    return departures.holders


def note_holders(state: State, names: Iterable[str]) -> None:
    """These members came, went, asked to leave or hold other snapshots."""
    current, members, departures = state.current, state.members, state.departures
    if current is None or current.alive or current.ended:
        departures.holders = None
    if departures.holders is None:
        return
    for name in names:
        member = members.get(name)
        held = member.snapshots if member is not None else ()
        departures.holders.note(name, held, stays=members.stays(name))


def _newest_counted(state: State) -> SnapshotNumber | None:
    """The same as `newest_usable` by what was counted; None where nothing is."""
    holders = state.departures.holders
    whole = holders.whole() if holders is not None else ()
    return max((number for number in whole if _is_usable(state, number)), default=None)


def what_keeps_sources(state: State) -> object:
    """On this it depends which members are kept as sources after a failure."""
    holders, newest = state.departures.holders, _newest_counted(state)
    if holders is None or newest is None:
        return None
    return newest, holders.revision(newest)


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
    state.members.on_held(member, snapshots)
    if state.current is not None:
        _forget_older(state, state.current, member)
        state.current.copies.hold(member.name, member.snapshots)
    announce_complete(state)


def _forget_older(state: State, current: CurrentGeneration, member: Member) -> None:
    """What the agent forgets, or has forgotten, by the newest announcement. It does not say so: it
    would be one more message of each agent for each snapshot.
    """
    if (complete := current.snapshot) is not None:
        kept = tuple(held for held in member.snapshots if not held.number.is_older(complete))
        if len(kept) < len(member.snapshots):
            state.members.on_held(member, kept)


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
            _forget_older(state, current, member)
            state.send(place.member, message)


def repeat_announcement(state: State, member: str) -> None:
    """A member is back, and may have missed the last announcement."""
    current = state.current
    if current is not None and current.snapshot is not None and member in state.members:
        _forget_older(state, current, state.members[member])
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


def _is_usable(state: State, number: SnapshotNumber) -> bool:
    """Whether the next generation may resume from it."""
    return _counts(state, number.step, number.generation) and not _is_outdated(state, number)


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
