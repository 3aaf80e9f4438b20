"""How the ranks of a world are arranged: the only module that factorises the world size.

Ranks are numbered along five dimensions, the last one fastest, so that those which talk most are neighbours, and a
replica group is a run of ranks: `replicate` (copies of the model), `pipeline` (parts of the stack of layers), `shard`
(parts of a copy), `context` (parts of a sequence), `tensor` (parts of a layer). Samples are shared out over `replicate`
x `shard`: each place there is a data-parallel row, whose ranks all train on the same samples.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from regroup_trainer.config import ParallelismConfig
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.world import World


class Axes(NamedTuple):
    """A number for each dimension: its size, or a rank's place in it."""

    replicate: int = 1
    pipeline: int = 1
    shard: int = 1
    context: int = 1
    tensor: int = 1


_DATA: dict[str, tuple[str, ...]] = {
    "ddp": ("replicate",),
    "zero": ("replicate",),
    "fsdp": ("shard",),
    "hsdp": ("replicate", "shard"),
    "dp": ("replicate",),
}
"""Strategy -> the data-parallel dimensions that it communicates along, also where they are of size 1."""
_connected: list[DeviceMesh] = []


@dataclass(frozen=True)
class Mesh:
    """A rank's place in its world. Pure, but for `connect` and `connect_context`."""

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
        """The rank's data-parallel row: which share of the batch is its own."""
        return self.place.replicate * self.sizes.shard + self.place.shard

    @property
    def data_size(self) -> int:
        """Data-parallel rows: into how many shares the batch is cut."""
        return self.sizes.replicate * self.sizes.shard

    @property
    def counts(self) -> bool:
        """Whether tokens and samples of the row are counted here: on one rank of it, which knows a loss."""
        return self.counts_loss and self.place.context == 0

    @property
    def counts_loss(self) -> bool:
        """Whether this rank's loss is counted: once for each slice of a sequence, at the end of the pipeline."""
        return self.place.pipeline == self.sizes.pipeline - 1 and self.place.tensor == 0

    @property
    def part(self) -> int:
        """Which part of the whole state this rank holds, of `parts`."""
        part = 0
        for dimension in self._cutting:
            part = part * getattr(self.sizes, dimension) + getattr(self.place, dimension)
        return part

    @property
    def parts(self) -> int:
        """Into how many parts the whole state is cut."""
        return math.prod(getattr(self.sizes, dimension) for dimension in self._cutting)

    @property
    def _cutting(self) -> tuple[str, ...]:
        return ("pipeline", "shard", *(("context",) if self._merged == "shard" else ()), "tensor")

    @property
    def _merged(self) -> str:
        """The data-parallel dimension to which ranks with slices of the same sequences belong, as parameters go."""
        return "shard" if "shard" in self.named else "replicate"

    def groups(self, dimension: str) -> tuple[tuple[int, ...], ...]:
        """The ranks of the world in groups along a dimension, each in the order of their places."""
        axis = Axes._fields.index(dimension)
        step = math.prod(self.sizes[axis + 1 :])
        length = self.sizes[axis]
        ranks = range(math.prod(self.sizes))
        return tuple(tuple(range(first, first + length * step, step)) for first in ranks if first // step % length == 0)

    def connect(self, device_type: str) -> DeviceMesh:
        """Make the process groups. All ranks call it; slices of the result serve single dimensions.

        Ranks that hold slices of the same sequences share parameters as data-parallel ranks do, so they belong to a
        data-parallel dimension here; `connect_context` groups them by themselves.
        """
        names = tuple(name for name in self.named if name != "context")
        sizes = {**self.sizes._asdict(), self._merged: getattr(self.sizes, self._merged) * self.sizes.context}
        order = [name for name in Axes._fields if name != "context"]
        order.insert(order.index(self._merged) + 1, "context")
        ranks = torch.arange(math.prod(self.sizes)).reshape(self.sizes)
        ranks = ranks.permute([Axes._fields.index(name) for name in order]).reshape([sizes[name] for name in names])
        return _remembered(DeviceMesh(device_type, ranks, mesh_dim_names=names))

    def connect_context(self, device_type: str) -> DeviceMesh:
        """The group of the ranks that hold slices of the same sequences. All ranks call it."""
        rows = math.prod(self.sizes) // (self.sizes.context * self.sizes.tensor)
        sizes = (rows, self.sizes.context, self.sizes.tensor)
        return _remembered(init_device_mesh(device_type, sizes, mesh_dim_names=("row", "context", "tensor")))["context"]

    def describe(self) -> str:
        """A sentence with the groups of each dimension that has more than one rank."""
        lines = [f"{name} {list(map(list, self.groups(name)))}" for name in self.named if getattr(self.sizes, name) > 1]
        return f"groups of ranks: {'; '.join(lines)}" if lines else "one rank, no groups"


def disconnect() -> None:
    """Let go of the process groups of all meshes; nobody may use these any more.

    Caches of DTensor keep meshes for ever, and these their groups, each with three threads and its connections (torch
    2.15). A group whose collective hangs never ends: that is left to a thread of its own.
    """
    groups = [group for mesh in _connected for group in mesh._pg_registry.values()]
    for mesh in _connected:
        mesh._pg_registry.clear()
    _connected.clear()
    threading.Thread(target=groups.clear, name="disconnect", daemon=True).start()


def _remembered(mesh: DeviceMesh) -> DeviceMesh:
    _connected.append(mesh)
    return mesh


def arrange(parallelism: ParallelismConfig, world: World) -> Mesh:
    """Factorise the world; what is left over by the fixed dimensions makes more data-parallel rows.

    Raises ConfigurationError when the world is not a multiple of the replica group.
    """
    unit = parallelism.replica_group_ranks
    if world.size % unit:
        raise ConfigurationError(
            f"parallelism: a replica group of {unit} ranks ({parallelism.replica_group}) does not divide the world of "
            f"{world.size}: choose a multiple of {unit} ranks, or smaller groups"
        )
    copies = world.size // unit
    sharded_freely = parallelism.strategy == "fsdp"
    sizes = Axes(
        replicate=1 if sharded_freely else copies,
        pipeline=parallelism.pipeline_parallel,
        shard=copies if sharded_freely else (parallelism.shard_group_size or 1),
        context=parallelism.context_parallel,
        tensor=parallelism.tensor_parallel,
    )
    data = _DATA[parallelism.strategy]
    named = tuple(name for name, size in sizes._asdict().items() if name in data or size > 1)
    return Mesh(sizes, world.rank, named)
