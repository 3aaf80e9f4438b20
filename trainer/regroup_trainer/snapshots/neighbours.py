"""Which members hold which shards of memory snapshots, so that one node may be lost.

Pure and torch-free. All follows from the record of the generation, so that its users cannot
disagree: agents (whom to send to), the coordinator (when a snapshot is complete) and ranks (who
writes, and how much memory that takes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from regroup_trainer.protocol.generation import MemberRecord


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
