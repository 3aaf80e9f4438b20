"""How the ranks of a generation are arranged. No other module factorises the world size.

Ranks are numbered along five dimensions, the last one fastest: `replicate` (copies of the model),
`pipeline` (parts of the stack of layers), `shard` (parts of a copy), `context` (parts of a
sequence), `tensor` (parts of a layer). So ranks that communicate most are neighbours, and a replica
group is a range of ranks. Samples are divided over `replicate` x `shard`. Each place there is a
data-parallel row, whose ranks all train on the same samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.parallel.process_group import GenerationGroup, end_later
from regroup_trainer.protocol.config import ParallelismConfig
from regroup_trainer.protocol.strategies import STRATEGIES


class Axes(NamedTuple):
    """A number for each dimension: its size, or a rank's place in it."""

    replicate: int = 1
    pipeline: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1


_connected: list[DeviceMesh] = []


@dataclass(frozen=True)
class Mesh:
    """A rank's place in its generation. Pure, except `connect` and `connect_context`."""

    sizes: Axes
    rank: int
    named: tuple[str, ...]
    """The dimensions that ranks communicate along."""

    @cached_property
    def place(self) -> Axes:
        """The rank's index along each dimension."""
        rest, indices = self.rank, []
        for size in reversed(self.sizes):
            rest, index = divmod(rest, size)
            indices.append(index)
        return Axes(*reversed(indices))

    @property
    def data_rank(self) -> int:
        """The rank's data-parallel row, which decides its share of the batch."""
        return self.place.replicate * self.sizes.shard + self.place.shard

    @property
    def data_size(self) -> int:
        """The number of data-parallel rows, and so of shares of the batch."""
        return self.sizes.replicate * self.sizes.shard

    @property
    def counts(self) -> bool:
        """Whether this rank counts the tokens and samples of its row: one rank does, of those that
        know a loss.
        """
        return self.counts_loss and self.place.context == 0

    @property
    def counts_loss(self) -> bool:
        """Whether this rank's loss counts: one rank's for each slice of a sequence, at the end of
        the pipeline.
        """
        return self.place.pipeline == self.sizes.pipeline - 1 and self.place.tensor == 0

    @property
    def part(self) -> int:
        """The part of the whole state that this rank holds, of `parts`."""
        part = 0
        for dimension in self._cutting:
            part = part * getattr(self.sizes, dimension) + getattr(self.place, dimension)
        return part

    @property
    def parts(self) -> int:
        """The number of different parts that make up the whole state."""
        return math.prod(getattr(self.sizes, dimension) for dimension in self._cutting)

    @property
    def _cutting(self) -> tuple[str, ...]:
        return ("pipeline", "shard", *(("context",) if self._merged == "shard" else ()), "tensor")

    @property
    def _merged(self) -> str:
        """The data-parallel dimension that also shards or copies parameters over the `context`
        dimension.
        """
        return "shard" if "shard" in self.named else "replicate"

    def groups(self, dimension: str) -> tuple[tuple[int, ...], ...]:
        """All ranks in groups along a dimension, each group in the order of its places."""
        axis = Axes._fields.index(dimension)
        step = math.prod(self.sizes[axis + 1 :])
        length = self.sizes[axis]
        ranks = range(math.prod(self.sizes))
        return tuple(
            tuple(range(first, first + length * step, step))
            for first in ranks
            if first // step % length == 0
        )

    def connect(self, device_type: str) -> DeviceMesh:
        """Make the process groups; slices of the result serve single dimensions. All ranks call it.

        Ranks with slices of the same sequences share parameters as data-parallel ranks do. So they
        belong to a data-parallel dimension here; `connect_context` gives their own group.
        """
        names = tuple(name for name in self.named if name != "context")
        sizes = {
            **self.sizes._asdict(),
            self._merged: getattr(self.sizes, self._merged) * self.sizes.context,
        }
        order = [name for name in Axes._fields if name != "context"]
        order.insert(order.index(self._merged) + 1, "context")
        ranks = torch.arange(math.prod(self.sizes)).reshape(self.sizes)
        ranks = ranks.permute([Axes._fields.index(name) for name in order]).reshape(
            [sizes[name] for name in names]
        )
        return _remembered(DeviceMesh(device_type, ranks, mesh_dim_names=names))

    def connect_context(self, device_type: str) -> DeviceMesh:
        """The group of the ranks that hold slices of the same sequences. All ranks call it."""
        rows = math.prod(self.sizes) // (self.sizes.context * self.sizes.tensor)
        sizes = (rows, self.sizes.context, self.sizes.tensor)
        return _remembered(
            init_device_mesh(device_type, sizes, mesh_dim_names=("row", "context", "tensor"))
        )["context"]

    def describe(self) -> str:
        """A sentence with the groups of each dimension that has more than one rank."""
        lines = [
            f"{name} {list(map(list, self.groups(name)))}"
            for name in self.named
            if getattr(self.sizes, name) > 1
        ]
        return f"groups of ranks: {'; '.join(lines)}" if lines else "one rank, no groups"


def disconnect() -> None:
    """Release the process groups of all meshes, which must not be used any more.

    DTensor's caches keep meshes for ever, and meshes keep their groups, each with three threads and
    its connections (torch 2.15).
    """
    groups = [group for mesh in _connected for group in mesh._pg_registry.values()]
    for mesh in _connected:
        mesh._pg_registry.clear()
    _connected.clear()
    end_later(groups)


def forget_meshes() -> None:
    """Clear DTensor's caches, which would return tensors on an old mesh of the same shape."""
    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def _remembered(mesh: DeviceMesh) -> DeviceMesh:
    _connected.append(mesh)
    return mesh


def arrange(parallelism: ParallelismConfig, group: GenerationGroup) -> Mesh:
    """Factorise the world size. Ranks that the configured dimensions leave over make more
    data-parallel rows.

    Raises ConfigurationError when the world size is not a multiple of the replica group.
    """
    unit = parallelism.replica_group_ranks
    if group.size % unit:
        raise ConfigurationError(
            f"parallelism: a replica group of {unit} ranks ({parallelism.replica_group}) does not "
            f"divide the world size {group.size}: choose a multiple of {unit} ranks, or smaller "
            "groups"
        )
    strategy = STRATEGIES[parallelism.strategy]
    replicate, shard = strategy.data_sizes(group.size // unit, parallelism.shard_group_size)
    sizes = Axes(
        replicate=replicate,
        pipeline=parallelism.pipeline_parallel,
        shard=shard,
        context=parallelism.context_parallel,
        tensor=parallelism.tensor_parallel,
    )
    named = tuple(
        name for name, size in sizes._asdict().items() if name in strategy.dimensions or size > 1
    )
    return Mesh(sizes, group.rank, named)
