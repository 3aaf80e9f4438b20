"""Ways to share a model over ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from regroup.planning.hardware import Cluster
from regroup.planning.transformer import Transformer

Strategy = Literal["ddp", "zero", "fsdp", "hsdp"]
Checkpointing = Literal["none", "selective", "full"]
CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full")
LARGEST_MICRO_BATCH = 64


@dataclass(frozen=True)
class Batch:
    """What a step trains on."""

    samples: int
    """Of the global batch."""
    sequence_length: int
    loss_chunks: int = 1
    """Parts in which the loss is computed."""

    @property
    def tokens(self) -> int:
        """Of the global batch."""
        return self.samples * self.sequence_length


@dataclass(frozen=True)
class Grid:
    """How ranks are arranged: replicate x shard x pipeline x tensor."""

    strategy: Strategy
    tensor: int
    pipeline: int
    shard: int
    """Ranks that share a copy's parameters (1 with ddp and zero)."""
    replicate: int

    @property
    def data(self) -> int:
        """Ranks that read different samples."""
        return self.shard * self.replicate

    @property
    def name(self) -> str:
        """As people write it: `fsdp 8 x tp 8`."""
        sharing = f"hsdp {self.replicate}x{self.shard}" if self.strategy == "hsdp" else f"{self.strategy} {self.data}"
        parts = [sharing] if self.data > 1 or self.tensor == self.pipeline == 1 else []
        parts += [f"pp {self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"tp {self.tensor}"] if self.tensor > 1 else []
        return " x ".join(parts)

    @property
    def dimensions(self) -> int:
        """How many kinds of sharing meet: fewer are easier to operate."""
        return (self.data > 1) + (self.tensor > 1) + (self.pipeline > 1) + (self.strategy == "hsdp")

    @property
    def family(self) -> tuple[Strategy | None, bool, bool]:
        """What is combined, whatever the numbers."""
        return self.strategy if self.data > 1 else None, self.pipeline > 1, self.tensor > 1


@dataclass(frozen=True)
class Layout:
    """A grid, and how a rank goes through its share of the batch."""

    grid: Grid
    micro_batch: int
    """Samples of a forward pass."""
    checkpointing: Checkpointing
    """Of activations."""

    def micro_batches(self, batch: Batch) -> int:
        """Forward passes of a step on a rank."""
        return math.ceil(batch.samples / (self.grid.data * self.micro_batch))


def divisors(number: int) -> list[int]:
    """All of them, ascending."""
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def grids(model: Transformer, cluster: Cluster) -> Iterator[Grid]:
    """All that the model and the machines allow. Tensor parallelism stays in a machine (Megatron-2, section 3.2)."""
    for tensor in divisors(cluster.gpus_per_node):
        if model.heads % tensor or model.key_value_heads % tensor:
            continue
        for pipeline in divisors(cluster.world // tensor):
            if model.layers % pipeline == 0:
                yield from _data_grids(tensor, pipeline, cluster.world // tensor // pipeline)


def _data_grids(tensor: int, pipeline: int, data: int) -> Iterator[Grid]:
    yield Grid("ddp", tensor, pipeline, 1, data)
    if data == 1:
        return
    if tensor == pipeline == 1:  # the optimizer's sharding knows whole parameters only
        yield Grid("zero", tensor, pipeline, 1, data)
    yield Grid("fsdp", tensor, pipeline, data, 1)
    for shard in divisors(data)[1:-1]:
        yield Grid("hsdp", tensor, pipeline, shard, data // shard)


def layouts(grid: Grid, batch: Batch) -> Iterator[Layout]:
    """Micro-batches in powers of two, up to the rank's share of the batch, with each kind of checkpointing."""
    largest = min(LARGEST_MICRO_BATCH, batch.samples // grid.data)
    for checkpointing in CHECKPOINTING:
        size = 1
        while size <= max(1, largest):
            yield Layout(grid, size, checkpointing)
            size *= 2
