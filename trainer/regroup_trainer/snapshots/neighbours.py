"""Which members keep what of a generation's memory snapshots, so that no one node's loss takes any of it. Torch-free.

Pure, and a function of the generation's record alone: agents (whom to send to), the coordinator (when a snapshot is
complete) and ranks (who writes, and into how much memory) cannot disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from regroup_trainer.contract import MemberRecord


def failure_domains(members: Sequence[MemberRecord]) -> dict[str, str]:
    """What each member is lost together with: its node, or only itself where all are on one node anyway."""
    nodes = {place.member: place.node for place in members}
    return nodes if len({*nodes.values()}) > 1 else {member: member for member in nodes}


def neighbours(members: Sequence[MemberRecord]) -> dict[str, MemberRecord]:
    """For each member the one in another failure domain that keeps a copy of its shards; empty where it is alone.

    The members stand in a row, by domains, the largest of them first, and each one's neighbour is as many places
    further on as the largest has members. No domain reaches so far, and every member keeps one other's copies. Only
    where the largest has more members than all others together do these take turns with its copies. With one member on
    each node the row is the order of ranks, and the neighbour the next in it.
    """
    domains = failure_domains(members)
    by_size = Counter(domains.values()).most_common()
    order = {domain: position for position, (domain, _) in enumerate(by_size)}
    row = sorted(members, key=lambda place: order[domains[place.member]])
    largest = by_size[0][1]
    others = len(row) - largest
    if not others:
        return {}
    further = [largest + n % others if n < largest else (n + largest) % len(row) for n in range(len(row))]
    return {place.member: row[position] for place, position in zip(row, further, strict=True)}


def writers(members: Sequence[MemberRecord]) -> tuple[MemberRecord, ...]:
    """Of a state that every rank has whole: the members that keep it, in different failure domains."""
    first = members[0]
    other = neighbours(members).get(first.member)
    return (first, other) if other else (first,)


def ranks_kept(members: Sequence[MemberRecord], member: str) -> int:
    """Of how many ranks a member has the shards in memory: its own, and those of whom it is the neighbour."""
    kept_by = {name: place.member for name, place in neighbours(members).items()}
    return sum(place.ranks for place in members if member in (place.member, kept_by.get(place.member)))
