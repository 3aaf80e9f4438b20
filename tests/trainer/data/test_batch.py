"""Which samples a rank trains on: the same batch for every world size."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.data.batch import BatchPlanner, micro_batches, share
from regroup_trainer.data.order import SampleOrder

BATCHES = st.integers(1, 64)
WORLD_SIZES = st.integers(1, 9)


def planners(world_size: int, batch: int, micro: int = 4) -> list[BatchPlanner]:
    return [
        BatchPlanner(SampleOrder(101, 7), batch, micro, rank, world_size)
        for rank in range(world_size)
    ]


@given(BATCHES, WORLD_SIZES)
def test_shares_are_contiguous_and_differ_by_at_most_one(batch: int, world_size: int) -> None:
    shares = [share(batch, rank, world_size) for rank in range(world_size)]
    assert [index for part in shares for index in part] == list(range(batch))
    sizes = [len(part) for part in shares]
    assert max(sizes) - min(sizes) <= 1


@given(BATCHES, WORLD_SIZES, st.integers(1, 9))
def test_all_ranks_run_micro_batches_of_one_number_and_shape(
    batch: int, world_size: int, micro: int
) -> None:
    parts = [micro_batches(np.arange(batch), rank, world_size, micro) for rank in range(world_size)]
    shapes = {tuple(len(part.ids) for part in rank_parts) for rank_parts in parts}
    assert len(shapes) == 1
    assert max(shapes.pop()) <= micro


@given(BATCHES, WORLD_SIZES, st.integers(1, 9))
def test_padding_is_a_real_sample_of_weight_zero(batch: int, world_size: int, micro: int) -> None:
    ids = np.arange(100, 100 + batch)
    for rank in range(world_size):
        parts = micro_batches(ids, rank, world_size, micro)
        pairs = [pair for part in parts for pair in zip(part.ids, part.weights, strict=True)]
        assert [sample for sample, weight in pairs if weight == 1.0] == [
            ids[i] for i in share(batch, rank, world_size)
        ]
        assert all(sample in ids for sample, weight in pairs if weight == 0.0)


@given(st.integers(0, 10_000), BATCHES)
def test_a_step_has_the_same_samples_for_every_world_size(first: int, batch: int) -> None:
    plans = {
        world_size: [
            sample
            for planner in planners(world_size, batch)
            for sample in planner.plan(first).own_ids
        ]
        for world_size in (1, 2, 3, 4)
    }
    assert all(ids == plans[1] for ids in plans.values())


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_no_sample_is_skipped_or_repeated_over_resizes(world_sizes: list[int]) -> None:
    batch, position, seen = 7, 0, list[int]()
    for world_size in world_sizes:
        plans = [planner.plan(position) for planner in planners(world_size, batch)]
        seen += [sample for plan in plans for sample in plan.own_ids.tolist()]
        position += plans[0].count
    assert seen == SampleOrder(101, 7).ids(range(position))
