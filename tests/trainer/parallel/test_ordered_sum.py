"""One order of addition for every number of ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.data.batch import share
from regroup_trainer.parallel.ordered_sum import Node, roots, total

SHARDS = st.integers(1, 70)


def bracketed(left: str, right: str) -> str:
    return f"({left}{right})"


def sum_over(shards: int, world_size: int) -> str:
    """How the sum is bracketed when so many ranks make it."""
    known: dict[Node, str] = {}
    for rank in range(world_size):
        own = share(shards, rank, world_size)
        for node in roots(own):
            part = range(node.number << node.level, (node.number + 1) << node.level)
            leaves = {Node(0, leaf - part.start): f"{leaf} " for leaf in part}
            known[node] = total(leaves, len(part), bracketed)
    return total(known, shards, bracketed)


@given(SHARDS, st.integers(1, 9))
def test_sums_are_bracketed_alike_for_every_world_size(shards: int, world_size: int) -> None:
    assert sum_over(shards, world_size) == sum_over(shards, 1)


@given(SHARDS, st.integers(1, 9))
def test_the_roots_of_all_ranks_cover_each_shard_once(shards: int, world_size: int) -> None:
    nodes = [node for rank in range(world_size) for node in roots(share(shards, rank, world_size))]
    covered = [
        shard
        for node in nodes
        for shard in range(node.number << node.level, (node.number + 1) << node.level)
    ]
    assert covered == list(range(shards))


@given(SHARDS, st.integers(1, 9))
def test_a_rank_has_few_roots(shards: int, world_size: int) -> None:
    for rank in range(world_size):
        own = share(shards, rank, world_size)
        assert len(roots(own)) <= 2 * max(1, len(own)).bit_length()


def test_pairs_are_added_first() -> None:
    assert sum_over(6, 1) == "(((0 1 )(2 3 ))(4 5 ))"
