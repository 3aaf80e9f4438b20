"""The ways to arrange ranks and to distribute a model over them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from regroup.planning.hardware import Cluster
from regroup.planning.transformer import Transformer
from regroup_trainer.protocol.config import micro_batch_shape
from regroup_trainer.protocol.strategies import STRATEGIES, Strategy, StrategyName

Checkpointing = Literal["none", "selective", "full"]
CHECKPOINTING: tuple[Checkpointing, ...] = ("none", "selective", "full")
LARGEST_MICRO_BATCH = 64
PLANNED = tuple(name for name, strategy in STRATEGIES.items() if strategy.rank_per_device)
"""The strategies that a plan considers, simplest first."""


@dataclass(frozen=True)
class Batch:
    """The samples of a step."""

    samples: int
    """Samples of the global batch."""
    sequence_length: int
    loss_chunks: int = 1
    """Parts in which the loss is computed."""

    @property
    def tokens(self) -> int:
        """Tokens of the global batch."""
        return self.samples * self.sequence_length


@dataclass(frozen=True)
class Grid:
    """How ranks are arranged: replicate x pipeline x shard x context x tensor, the last one
    fastest, as the trainer arranges them.
    """

    strategy: StrategyName
    tensor: int
    pipeline: int
    shard: int
    """Ranks over which a copy's parameters are sharded (1 with ddp and zero)."""
    replicate: int
    context: int = 1
    """Ranks that hold slices of the same sequences."""

    @property
    def kind(self) -> Strategy:
        """What the strategy does."""
        return STRATEGIES[self.strategy]

    @property
    def optimizer_shards(self) -> int:
        """Ranks over which the optimizer's state is sharded."""
        return self.data if self.kind.shards_optimizer_alone else self.parameter_shards

    @property
    def parameter_shards(self) -> int:
        """Ranks over which parameters and gradients are sharded: those with slices of the same
        sequences, too.
        """
        return self.shard * self.context if self.kind.shards_parameters else 1

    @property
    def copies(self) -> int:
        """Ranks that hold the same part of the parameters."""
        return self.replicate if self.kind.shards_parameters else self.data * self.context

    @property
    def ranks_per_row(self) -> int:
        """Ranks that train on the same samples."""
        return self.pipeline * self.context * self.tensor

    @property
    def data(self) -> int:
        """Ranks that read different samples."""
        return self.shard * self.replicate

    def layers_per_stage(self, model: Transformer) -> int:
        """The model's layers that a pipeline stage holds."""
        return model.layers // self.pipeline

    @property
    def name(self) -> str:
        """The grid in words, such as `fsdp 8 x tp 8`."""
        sharing = (
            f"hsdp {self.replicate}x{self.shard}"
            if self.kind.has_shard_groups
            else f"{self.strategy} {self.data}"
        )
        alone = self.data == 1 and self.parameter_shards == 1 and self.ranks_per_row > 1
        parts = [] if alone else [sharing]
        parts += [f"pp {self.pipeline}"] if self.pipeline > 1 else []
        parts += [f"cp {self.context}"] if self.context > 1 else []
        parts += [f"tp {self.tensor}"] if self.tensor > 1 else []
        return " x ".join(parts)

    @property
    def complexity(self) -> tuple[int, bool, int]:
        """Smaller is easier to operate: the number of kinds of parallelism that are combined, then
        no pipeline with its schedule, then the strategies in the order of `PLANNED`.
        """
        data = len(self.kind.dimensions) if self.data > 1 or self.parameter_shards > 1 else 0
        others = sum(size > 1 for size in (self.tensor, self.pipeline, self.context))
        return data + others, self.pipeline > 1, PLANNED.index(self.strategy)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of parallelism that are combined, as in `name`, without their sizes."""
        return frozenset(part.split()[0] for part in self.name.split(" x "))


@dataclass(frozen=True)
class Layout:
    """A grid, and how a rank processes its share of the batch."""

    grid: Grid
    micro_batch: int
    """The most samples of a forward pass, as `trainer.training.microBatchSize`."""
    checkpointing: Checkpointing
    """Kind of activation checkpointing."""

    def micro_batches(self, batch: Batch) -> int:
        """Forward passes of a step on a rank."""
        return self._shape(batch)[0]

    def samples(self, batch: Batch) -> int:
        """Samples of a forward pass: fewer than `micro_batch` where the rank's share is small."""
        return self._shape(batch)[1]

    def tokens(self, batch: Batch) -> int:
        """Tokens of a forward pass on one rank, which has a slice of each sequence."""
        return self.samples(batch) * batch.sequence_length // self.grid.context

    def _shape(self, batch: Batch) -> tuple[int, int]:
        grid = self.grid
        return micro_batch_shape(batch.samples, grid.data, self.micro_batch, grid.pipeline)


def divisors(number: int) -> list[int]:
    """All numbers that divide `number`, 1 and itself included, ascending."""
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})


def grids(model: Transformer, cluster: Cluster, sequence_length: int) -> Iterator[Grid]:
    """All grids that the model, its sequences and the machines allow.

    Tensor parallelism stays within a machine (Megatron-2, section 3.2).
    """
    for tensor in divisors(cluster.gpus_per_node):
        if model.heads % tensor or model.key_value_heads % tensor:
            continue
        for pipeline in divisors(cluster.devices // tensor):
            if model.layers % pipeline:
                continue
            rest = cluster.devices // tensor // pipeline
            for context in divisors(rest):
                if sequence_length % context == 0:
                    yield from _data_grids(tensor, pipeline, context, rest // context)


def _data_grids(tensor: int, pipeline: int, context: int, data: int) -> Iterator[Grid]:
    for name in PLANNED:
        strategy = STRATEGIES[name]
        if tensor * pipeline * context > 1 and not strategy.takes_model_parallelism:
            continue
        sharing = data * context if strategy.shards_parameters else data
        if sharing == 1 and strategy.shards:
            continue
        for shard in _shard_sizes(strategy, data):
            yield Grid(name, tensor, pipeline, shard, data // shard, context)


def _shard_sizes(strategy: Strategy, data: int) -> list[int]:
    if strategy.has_shard_groups:
        return divisors(data)[1:-1]
    return [data if strategy.shards_parameters else 1]


def layouts(grid: Grid, batch: Batch) -> Iterator[Layout]:
    """The layouts of a grid: each division of the rank's share into micro-batches of at most a
    power of two, with each kind of checkpointing.
    """
    limits = [2**power for power in range(LARGEST_MICRO_BATCH.bit_length())]
    sizes = sorted({Layout(grid, limit, "none").samples(batch) for limit in limits})
    for checkpointing in CHECKPOINTING:
        for size in sizes:
            yield Layout(grid, size, checkpointing)
