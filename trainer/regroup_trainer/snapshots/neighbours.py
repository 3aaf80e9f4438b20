"""Which members hold which shards of memory snapshots, so that one node may be lost.

Pure and torch-free. All follows from the record of the generation, so that its users cannot
disagree: agents (whom to send to), the coordinator (when a snapshot is complete) and ranks (who
writes, and how much memory that takes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from regroup_trainer.protocol.agent_messages import HeldSnapshot
from regroup_trainer.protocol.generation import GenerationNumber, MemberRecord, SnapshotNumber

HOLDERS = 2
"""Failure domains that hold each shard of a complete snapshot, so that one of them may be lost."""


def failure_domains(members: Sequence[MemberRecord]) -> dict[str, str]:
    """The failure domain of each member: its node, or itself where all are on one node."""
    nodes = {place.member: place.node for place in members}
    return nodes if len({*nodes.values()}) > 1 else {member: member for member in nodes}


def neighbours(members: Sequence[MemberRecord]) -> dict[str, MemberRecord]:
    """For each member the one that holds a copy of its shards; empty where it is alone.

    The neighbour is in another failure domain. The members are put into a row by domains, the
    largest domain first. The neighbour of each is so many places further on as the largest domain
    has members, and no domain reaches that far. So every member holds copies of one other. Only if
    the largest domain has more members than all others together, these take turns with its copies.
    With one member on each node, the row is the order of ranks and the neighbour the next in it.
    """
    domains = failure_domains(members)
    by_size = Counter(domains.values()).most_common()
    order = {domain: position for position, (domain, _) in enumerate(by_size)}
    row = sorted(members, key=lambda place: order[domains[place.member]])
    largest = by_size[0][1]
    others = len(row) - largest
    if not others:
        return {}
    further = [
        largest + n % others if n < largest else (n + largest) % len(row) for n in range(len(row))
    ]
    return {place.member: row[position] for place, position in zip(row, further, strict=True)}


def writers(members: Sequence[MemberRecord]) -> tuple[MemberRecord, ...]:
    """The members that hold a state which every rank has whole, in different failure domains."""
    first = members[0]
    other = neighbours(members).get(first.member)
    return (first, other) if other else (first,)


def ranks_kept(members: Sequence[MemberRecord], member: str) -> int:
    """The number of ranks whose shards a member holds: its own, and those of members that it holds
    copies for.
    """
    kept_by = {name: place.member for name, place in neighbours(members).items()}
    return sum(
        place.ranks for place in members if member in (place.member, kept_by.get(place.member))
    )


class SnapshotCopies:
    """In how many failure domains each shard of a generation's snapshots is held. What a member
    holds is counted when it changes.
    """

    def __init__(self, generation: GenerationNumber, members: Sequence[MemberRecord]) -> None:
        self._generation = generation
        self._domains = failure_domains(members)
        self._enough = min(HOLDERS, len({*self._domains.values()}))
        self._held: dict[str, list[HeldSnapshot]] = {}
        """By member."""
        self._copies: dict[SnapshotNumber, dict[int, Counter[str]]] = {}
        """By shard the domains, with the number of copies in each."""
        self._safe: Counter[SnapshotNumber] = Counter()
        """How many shards are held in enough domains."""

    def hold(self, member: str, snapshots: Sequence[HeldSnapshot]) -> None:
        """What this member holds from now on. Snapshots of other generations do not count, nor do
        members without a place in this one.
        """
        if member not in self._domains:
            return
        held = [one for one in snapshots if one.number.generation == self._generation]
        before = self._held.pop(member, [])
        if held:
            self._held[member] = held
        for change, some, others in ((-1, before, held), (1, held, before)):
            for snapshot in some:
                if snapshot not in others:
                    self._count(snapshot, self._domains[member], change)

    def complete(self) -> SnapshotNumber | None:
        """The newest snapshot of which each shard is held in enough domains; None: none is."""
        whole = [number for number, safe in self._safe.items() if safe == number.shards]
        return max(whole, default=None)

    def _count(self, held: HeldSnapshot, domain: str, change: int) -> None:
        number = held.number
        shards = self._copies.setdefault(number, {})
        for shard in {*held.shards}:
            domains = shards.setdefault(shard, Counter())
            was_safe = len(domains) >= self._enough
            domains[domain] += change
            if not domains[domain]:
                del domains[domain]
            self._safe[number] += (len(domains) >= self._enough) - was_safe
            if not domains:
                del shards[shard]
        if not shards:
            del self._copies[number], self._safe[number]


@dataclass
class _Holders:
    """Of each shard of one snapshot: how many members hold it, and how many of these stay."""

    all: Counter[int] = field(default_factory=Counter)
    staying: Counter[int] = field(default_factory=Counter)
    revision: int = 0
    """Raised when a shard gets its first holder that stays."""


class ShardHolders:
    """Which shards of memory snapshots are held, and which of them by members that stay. What a
    member holds is counted when it changes.
    """

    def __init__(self) -> None:
        self._noted: dict[str, tuple[Sequence[HeldSnapshot], bool]] = {}
        """By member."""
        self._holders: dict[SnapshotNumber, _Holders] = {}
        self._gains = 0
        """Of all snapshots: one that is gone and comes again has another revision."""

    def note(self, member: str, snapshots: Sequence[HeldSnapshot], *, stays: bool) -> None:
        """What this member holds from now on, and whether it means to stay."""
        before = self._noted.pop(member, ((), False))
        if snapshots:
            self._noted[member] = snapshots, stays
        self._count(snapshots, 1, stays=stays)  # first, so that what it goes on to hold is no gain
        self._count(before[0], -1, stays=before[1])

    def whole(self) -> list[SnapshotNumber]:
        """The snapshots of which each shard is held."""
        return [one for one, holders in self._holders.items() if len(holders.all) == one.shards]

    def revision(self, number: SnapshotNumber) -> int:
        """Raised when a shard of this snapshot gets its first holder that stays."""
        return self._holders[number].revision

    def is_needed(self, number: SnapshotNumber, snapshots: Sequence[HeldSnapshot]) -> bool:
        """Whether these have a shard of that snapshot which no member that stays holds."""
        staying = self._holders[number].staying
        shards = (shard for held in snapshots if held.number == number for shard in held.shards)
        return any(shard not in staying for shard in shards)

    def _count(self, snapshots: Sequence[HeldSnapshot], change: int, *, stays: bool) -> None:
        for held in snapshots:
            holders = self._holders.setdefault(held.number, _Holders())
            for shard in held.shards:
                _add(holders.all, shard, change)
                if stays and _add(holders.staying, shard, change) == change == 1:
                    self._gains += 1
                    holders.revision = self._gains
            if not holders.all:
                del self._holders[held.number]


def _add(counts: Counter[int], shard: int, change: int) -> int:
    """The new count; what is not there any more has no place in it."""
    counts[shard] += change
    return counts[shard] or counts.pop(shard)
