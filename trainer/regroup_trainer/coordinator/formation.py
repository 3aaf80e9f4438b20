"""Which members make the next generation, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from regroup_trainer.protocol.agent_messages import Hello
from regroup_trainer.protocol.desired import Desired
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    MemberRecord,
    RestoredFrom,
    SnapshotSource,
)


def wanted_workers(desired: Desired) -> int:
    """Members of a full generation: `replicas` within its bounds, in whole replica groups."""
    return _whole_groups(min(desired.replicas, desired.max_replicas), desired)


def _whole_groups(workers: int, desired: Desired) -> int:
    return workers - workers % desired.replica_group_size


def least_workers(desired: Desired) -> int:
    """Members of the smallest generation that may train. One that is to be suspended only saves."""
    group = desired.replica_group_size
    if desired.suspend:
        return group
    return max(-(-desired.min_replicas // group) * group, group)


def size_of_next(fitting: int, desired: Desired) -> int:
    """How many members the next generation has of so many that may take part; 0: too few."""
    size = min(_whole_groups(fitting, desired), wanted_workers(desired))
    return size if size >= least_workers(desired) else 0


def choose(
    candidates: Sequence[Hello],
    previous: GenerationRecord | None,
    desired: Desired,
    coordinator_node: str,
) -> tuple[Hello, ...]:
    """The members of the next generation in rank order; empty when there are too few.

    - Members of the previous generation come before new ones and keep their order. A new member as
      rank 0 would broadcast fresh weights.
    - They also keep their place within a replica group, since they hold that part of the state.
    - Where there are too many, the highest indices stay out. So a spare takes the place of a
      missing worker and keeps it, and a replacement that comes later is a spare.
    - Rank 0 runs on another node than the coordinator where it can, so that the loss of one node
      takes one of the two.
    """
    fitting = sorted(
        (hello for hello in candidates if hello.index < desired.workers),
        key=lambda hello: hello.index,
    )
    count = size_of_next(len(fitting), desired)
    if not count:
        return ()
    former = previous.members if previous else ()
    order = {place.member: position for position, place in enumerate(former)}
    former_first = sorted(
        fitting, key=lambda hello: (order.get(hello.member, len(order)), hello.index)
    )
    size = desired.replica_group_size
    groups = _groups(former_first, order, count // size, size)
    first = next((group for group in groups if group[0].node != coordinator_node), groups[0])
    rest = [group for group in groups if group is not first]
    return tuple(hello for group in (first, *rest) for hello in group)


def _groups(
    members: list[Hello], order: dict[str, int], groups: int, size: int
) -> list[tuple[Hello, ...]]:
    """So many replica groups of that size, filled from the first of `members`.

    A member of the previous generation keeps its place within a group.
    """
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


def last_holders(
    record: GenerationRecord, positions: Iterable[int], stays: Callable[[str], bool]
) -> frozenset[str]:
    """Those of a generation's members at these positions that hold a part of the state which no
    member that stays has.

    Members at the same place of their replica groups hold the same part.
    """
    members, size = record.members, record.desired.replica_group_size
    positions = [*positions]
    lost = {
        place
        for place in {position % size for position in positions}
        if not any(stays(one.member) for one in islice(members, place, None, size))
    }
    return frozenset(members[one].member for one in positions if one % size in lost)


def make_record(
    number: GenerationNumber,
    chosen: Sequence[Hello],
    desired: Desired,
    because: tuple[RestoredFrom, str],
    snapshot: SnapshotSource | None = None,
    failures: int = 0,
) -> GenerationRecord:
    """The record of a generation: ranks are numbered through the members in their order.

    `because` is where the state comes from, and the reason. The c10d store is that of rank 0's pod.
    """
    restored_from, reason = because
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
        restored_from=restored_from,
        members=tuple(places),
        store=chosen[0].store,
        desired=desired,
        snapshot=snapshot,
        failures=failures,
    )
