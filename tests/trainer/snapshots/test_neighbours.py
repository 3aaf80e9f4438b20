"""Who holds copies for whom: two nodes hold every shard, and no member holds more than it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.protocol.agent_messages import HeldSnapshot
from regroup_trainer.protocol.generation import GenerationNumber, SnapshotNumber
from regroup_trainer.snapshots.neighbours import (
    HOLDERS,
    ShardHolders,
    SnapshotCopies,
    failure_domains,
    neighbours,
    ranks_kept,
    writers,
)
from tests.support.generations import make_places

some_nodes = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12)


def pairs(nodes: Sequence[str]) -> dict[str, str]:
    """Who holds copies for whom, by name."""
    return {name: place.member for name, place in neighbours(make_places(nodes)).items()}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param(
            "abc",
            {"m0": "m1", "m1": "m2", "m2": "m0"},
            id="one member a node: the next, the last's is the first",
        ),
        pytest.param(
            "aaa", {"m0": "m1", "m1": "m2", "m2": "m0"}, id="all on one node: the next member"
        ),
        pytest.param(
            "aabb", {"m0": "m2", "m1": "m3", "m2": "m0", "m3": "m1"}, id="two nodes of two"
        ),
        pytest.param(
            "aab", {"m0": "m2", "m1": "m2", "m2": "m1"}, id="one node has most of the members"
        ),
        pytest.param(
            "baac",
            {"m1": "m0", "m2": "m3", "m0": "m1", "m3": "m2"},
            id="the largest node in the middle",
        ),
        pytest.param("a", {}, id="alone"),
    ],
)
def test_the_neighbour_is_on_another_node_where_there_is_one(
    nodes: str, expected: dict[str, str]
) -> None:
    assert pairs(nodes) == expected


@given(some_nodes)
def test_what_a_node_holds_is_held_elsewhere_too(nodes: list[str]) -> None:
    members = make_places(nodes)
    domains = failure_domains(members)
    for name, other in neighbours(members).items():
        assert domains[name] != domains[other.member]
    assert neighbours(members).keys() == (domains.keys() if len(nodes) > 1 else set())


@given(some_nodes)
def test_nobody_keeps_more_copies_than_must_be(nodes: list[str]) -> None:
    loads = Counter(pairs(nodes).values())
    largest = max(Counter(failure_domains(make_places(nodes)).values()).values())
    least = -(
        -largest // max(1, len(nodes) - largest)
    )  # of the largest node's, for each of the others
    assert max(loads.values(), default=0) <= least


@given(some_nodes)
def test_a_state_that_all_have_is_written_by_two_members_on_different_nodes(
    nodes: list[str],
) -> None:
    members = make_places(nodes)
    found = writers(members)
    assert (
        len({failure_domains(members)[place.member] for place in found})
        == min(2, len(nodes))
        == len(found)
    )
    assert found[0] == members[0]


def test_a_member_keeps_its_own_ranks_shards_and_those_it_is_the_neighbour_for() -> None:
    assert [ranks_kept(make_places("abc", ranks=2), f"m{n}") for n in range(3)] == [4, 4, 4]
    assert [ranks_kept(make_places("aab", ranks=2), f"m{n}") for n in range(3)] == [2, 4, 6]
    assert ranks_kept(make_places("a", ranks=2), "m0") == 2


OURS, EARLIER = GenerationNumber(1, 2), GenerationNumber(1, 1)


def parts_of(number: SnapshotNumber) -> st.SearchStrategy[HeldSnapshot]:
    """What an agent holds of a snapshot; it may name a part twice."""
    shards = st.lists(st.integers(0, number.shards - 1), max_size=4).map(tuple)
    return st.builds(HeldSnapshot, number=st.just(number), shards=shards)


some_numbers = st.builds(
    SnapshotNumber, st.integers(1, 3), st.sampled_from([OURS, EARLIER]), st.integers(1, 3)
)
some_held = st.lists(some_numbers.flatmap(parts_of), max_size=3)


def newest_complete(
    nodes: Sequence[str], held: dict[str, list[HeldSnapshot]]
) -> SnapshotNumber | None:
    """The same from all that is held now."""
    domains = failure_domains(make_places(nodes))
    enough = min(HOLDERS, len({*domains.values()}))
    pairs = {
        (one.number, shard, domains[member])
        for member, snapshots in held.items()
        for one in snapshots
        for shard in one.shards
    }
    numbers = {number for number, _, _ in pairs if number.generation == OURS}
    times = Counter((number, shard) for number, shard, _ in pairs)
    whole = [
        number
        for number in numbers
        if all(times[number, shard] >= enough for shard in range(number.shards))
    ]
    return max(whole, default=None)


@given(some_nodes, st.lists(st.tuples(st.integers(0, 11), some_held), max_size=20))
def test_copies_are_counted_as_if_all_were_looked_at(
    nodes: list[str], changes: list[tuple[int, list[HeldSnapshot]]]
) -> None:
    copies = SnapshotCopies(OURS, make_places(nodes))
    held: dict[str, list[HeldSnapshot]] = {}
    for number, snapshots in changes:
        member = f"m{number % len(nodes)}"
        held[member] = snapshots
        copies.hold(member, snapshots)
        assert copies.complete() == newest_complete(nodes, held)


def test_what_others_hold_does_not_count() -> None:
    copies = SnapshotCopies(OURS, make_places("ab"))
    snapshot = HeldSnapshot(number=SnapshotNumber(1, OURS, 1), shards=(0,))
    copies.hold("m0", [snapshot])
    copies.hold("a spare", [snapshot])
    assert copies.complete() is None
    copies.hold("m1", [snapshot])
    assert copies.complete() == snapshot.number


def shards_of(
    held: dict[str, tuple[list[HeldSnapshot], bool]], number: SnapshotNumber, *, staying: bool
) -> set[int]:
    """The shards of a snapshot that any member holds, or any that stays."""
    some = [one for one, stays in held.values() if stays or not staying]
    return {shard for one in some for of in one if of.number == number for shard in of.shards}


@given(st.lists(st.tuples(st.sampled_from("abcd"), some_held, st.booleans()), max_size=20))
def test_holders_are_counted_as_if_all_were_looked_at(
    changes: list[tuple[str, list[HeldSnapshot], bool]],
) -> None:
    holders, held = ShardHolders(), dict[str, tuple[list[HeldSnapshot], bool]]()
    for member, snapshots, stays in changes:
        numbers = {of.number for one, _ in held.values() for of in one}
        before = {number: shards_of(held, number, staying=True) for number in numbers}
        revisions = {number: holders.revision(number) for number in numbers if before[number]}
        held[member] = snapshots, stays
        holders.note(member, snapshots, stays=stays)
        numbers = {of.number for one, _ in held.values() for of in one}
        whole = [n for n in numbers if len(shards_of(held, n, staying=False)) == n.shards]
        assert {*holders.whole()} == {*whole}
        for number in whole:
            staying = shards_of(held, number, staying=True)
            for shard in range(number.shards):
                one = HeldSnapshot(number=number, shards=(shard,))
                assert holders.is_needed(number, [one]) == (shard not in staying)
            gained = staying - before.get(number, set())
            assert (holders.revision(number) != revisions.get(number, 0)) or not gained
