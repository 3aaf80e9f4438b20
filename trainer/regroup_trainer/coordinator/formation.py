"""Which members make the next world, in which order: pure."""

from __future__ import annotations

from collections.abc import Sequence

from regroup_trainer.contract import (
    Desired,
    GenerationNumber,
    GenerationRecord,
    Hello,
    MemberRecord,
    Rung,
    SnapshotSource,
)


def wanted_workers(desired: Desired) -> int:
    """Members of the full world: what the spec wants within its bounds, a multiple of the replica group."""
    return _whole_groups(min(desired.replicas, desired.max_replicas), desired)


def _whole_groups(workers: int, desired: Desired) -> int:
    return workers - workers % desired.replica_group_size


def least_workers(desired: Desired) -> int:
    """Members of the smallest world that may train."""
    group = desired.replica_group_size
    return max(-(-desired.min_replicas // group) * group, group)


def choose(
    candidates: Sequence[Hello], previous: GenerationRecord | None, desired: Desired, coordinator_node: str
) -> tuple[Hello, ...]:
    """The members of the next world in rank order; empty when there are too few.

    Survivors keep their relative order and come before joiners (a joiner as rank 0 would broadcast fresh weights), and
    their place within a replica group, since that is the part of the state that they hold. The highest indices go first
    when there are too many: a spare takes the place of whoever is missing and keeps it, and a replacement that comes
    later is a spare. Rank 0 moves to another node than the coordinator's, so that one node's loss takes one of the two.
    """
    fitting = sorted((hello for hello in candidates if hello.index < desired.workers), key=lambda hello: hello.index)
    count = min(_whole_groups(len(fitting), desired), wanted_workers(desired))
    if count < least_workers(desired):
        return ()
    order = {place.member: position for position, place in enumerate(previous.members)} if previous else {}
    survivors_first = sorted(fitting, key=lambda hello: (order.get(hello.member, len(order)), hello.index))
    groups = _groups(survivors_first, order, count // desired.replica_group_size, desired.replica_group_size)
    first = next((group for group in groups if group[0].node != coordinator_node), groups[0])
    return tuple(hello for group in (first, *(g for g in groups if g is not first)) for hello in group)


def _groups(members: list[Hello], order: dict[str, int], groups: int, size: int) -> list[tuple[Hello, ...]]:
    """So many replica groups of that size out of the first members, who keep the places in a group that they had."""
    columns: list[list[Hello]] = [[] for _ in range(size)]
    rest = []
    for hello in members:
        column = columns[order[hello.member] % size] if hello.member in order else None
        if column is not None and len(column) < groups:
            column.append(hello)
        else:
            rest.append(hello)
    for column in columns:
        while len(column) < groups:
            column.append(rest.pop(0))
    return list(zip(*columns, strict=True))


def make_record(
    number: GenerationNumber,
    chosen: Sequence[Hello],
    desired: Desired,
    because: tuple[Rung, str],
    snapshot: SnapshotSource | None = None,
) -> GenerationRecord:
    """The agreed world: ranks are numbered through the members; the store is that of rank 0's pod."""
    rung, reason = because
    places = []
    first_rank = 0
    for hello in chosen:
        places.append(
            MemberRecord(
                member=hello.member,
                index=hello.index,
                pod=hello.pod,
                node=hello.node,
                first_rank=first_rank,
                ranks=hello.ranks,
                address=hello.store.rpartition(":")[0],
                endpoint=hello.endpoint,
            )
        )
        first_rank += hello.ranks
    return GenerationRecord(
        number=number,
        reason=reason,
        rung=rung,
        members=tuple(places),
        store=chosen[0].store,
        desired=desired,
        snapshot=snapshot,
    )


def waiting_message(have: int, desired: Desired) -> str:
    """Why no world can be formed yet."""
    least = least_workers(desired)
    missing = max(1, least - have)
    return f"waiting for {missing} more worker{'s' if missing > 1 else ''}: have {have} of at least {least}"
