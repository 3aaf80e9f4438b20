"""How the world size is factorised: each rank has one place, and groups are those of the matrix."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.parallel.mesh import Axes, Mesh, arrange
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import ParallelismConfig

SIZES = st.builds(Axes, *[st.integers(1, 3)] * 5)


def place(parallelism: dict[str, object], size: int, rank: int = 0) -> Mesh:
    return arrange(
        ParallelismConfig.model_validate(parallelism),
        GenerationGroup(rank, size, 0, torch.device("cpu")),
    )


@given(SIZES)
def test_every_rank_has_a_place_of_its_own(sizes: Axes) -> None:
    world_size = int(np.prod(sizes))
    places = [Mesh(sizes, rank, ()).place for rank in range(world_size)]
    assert places == [Axes(*index) for index in np.ndindex(*sizes)]


@given(SIZES)
def test_each_data_parallel_row_is_counted_once(sizes: Axes) -> None:
    meshes = [Mesh(sizes, rank, ()) for rank in range(int(np.prod(sizes)))]
    assert [mesh.data_rank for mesh in meshes if mesh.counts] == list(range(meshes[0].data_size))


@given(SIZES)
def test_groups_are_the_lines_of_the_array_of_ranks(sizes: Axes) -> None:
    mesh = Mesh(sizes, 0, ())
    ranks = np.arange(np.prod(sizes)).reshape(sizes)
    for axis, name in enumerate(Axes._fields):
        lines = np.moveaxis(ranks, axis, -1).reshape(-1, sizes[axis])
        assert sorted(mesh.groups(name)) == sorted(tuple(map(int, line)) for line in lines)


@given(SIZES, st.booleans())
def test_a_replica_group_is_a_run_of_ranks_that_hold_every_part(sizes: Axes, shards: bool) -> None:
    sizes = sizes if shards else sizes._replace(shard=1)
    named = ("replicate", "shard") if shards else ("replicate",)
    meshes = [Mesh(sizes, rank, named) for rank in range(int(np.prod(sizes)))]
    size = len(meshes) // sizes.replicate
    held = [
        [mesh.part for mesh in meshes[first : first + size]]
        for first in range(0, len(meshes), size)
    ]
    assert held == [held[0]] * sizes.replicate
    copies = (
        1 if shards else sizes.context
    )  # ranks with slices of the same sequences have the same parameters
    assert Counter(held[0]) == dict.fromkeys(range(meshes[0].parts), copies)


@pytest.mark.parametrize(("world_size", "shard"), [(4, 2), (6, 3), (8, 2), (8, 4)])
def test_shard_groups_are_rows_and_replica_groups_columns_of_the_matrix(
    world_size: int, shard: int
) -> None:
    matrix = np.arange(world_size).reshape(world_size // shard, shard)
    mesh = place({"strategy": "hsdp", "shardGroupSize": shard}, world_size)
    assert mesh.groups("shard") == tuple(tuple(map(int, row)) for row in matrix)
    assert mesh.groups("replicate") == tuple(tuple(map(int, column)) for column in matrix.T)


def test_groups_are_described_in_a_sentence() -> None:
    mesh = place({"strategy": "hsdp", "shardGroupSize": 2}, 4)
    assert mesh.describe() == "groups of ranks: replicate [[0, 2], [1, 3]]; shard [[0, 1], [2, 3]]"
    assert place({}, 1).describe() == "one rank, no groups"


@pytest.mark.parametrize(
    ("parallelism", "world_size", "sizes", "named"),
    [
        ({"strategy": "ddp"}, 3, Axes(replicate=3), ("replicate",)),
        ({"strategy": "fsdp"}, 3, Axes(shard=3), ("shard",)),
        (
            {"strategy": "fsdp", "tensorParallel": 2},
            6,
            Axes(shard=3, tensor=2),
            ("shard", "tensor"),
        ),
        ({"pipelineParallel": 2}, 4, Axes(pipeline=2, replicate=2), ("replicate", "pipeline")),
        (
            {"strategy": "hsdp", "shardGroupSize": 2, "contextParallel": 2},
            8,
            Axes(replicate=2, shard=2, context=2),
            ("replicate", "shard", "context"),
        ),
    ],
)
def test_what_the_groups_leave_over_makes_more_rows(
    parallelism: dict[str, object], world_size: int, sizes: Axes, named: tuple[str, ...]
) -> None:
    mesh = place(parallelism, world_size)
    assert (mesh.sizes, mesh.named) == (sizes, named)


def test_a_world_size_that_is_no_multiple_of_the_replica_group_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"replica group of 4 ranks \(shardGroupSize 2 x tensorParallel 2\) "
        r"does not divide the world size 6",
    ):
        place({"strategy": "hsdp", "shardGroupSize": 2, "tensorParallel": 2}, 6)


@pytest.mark.parametrize(
    "parallelism", [{"strategy": "hsdp"}, {"strategy": "fsdp", "shardGroupSize": 2}]
)
def test_shard_groups_belong_to_hybrid_sharding(parallelism: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="only hsdp takes it"):
        ParallelismConfig.model_validate(parallelism)
