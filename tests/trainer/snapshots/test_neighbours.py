"""Who holds copies for whom: two nodes hold every shard, and no member holds more than it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.snapshots.neighbours import failure_domains, neighbours, ranks_kept, writers
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
