"""The table of parallel strategies: all that others need to know of each. Pure.

Mesh, step, recovery, coordinator and planning read this table. A new strategy is an entry here and
the code that wraps a model for it (`parallel/data_parallel.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

StrategyName = Literal["ddp", "zero", "fsdp", "hsdp", "dp"]
DataDimension = Literal["replicate", "shard"]

BUCKET_OPTIONS = frozenset({"bucket_megabytes", "static_graph", "gradient_hook", "gradient_rank"})
"""Fields of ParallelismConfig about the buckets of DDP, which model parallelism does not use."""
_SHARDING_OPTIONS = frozenset({"reshard_after_forward", "cpu_offload"})
_MODEL_PARALLEL_OPTIONS = frozenset({"tensor_parallel", "pipeline_parallel", "context_parallel"})


@dataclass(frozen=True)
class Strategy:
    """What a strategy does with model, optimizer and gradients."""

    dimensions: tuple[DataDimension, ...]
    """The data-parallel dimensions of the mesh along which ranks communicate, also where they are
    of size 1. `replicate`: copies of the model; `shard`: parts of one copy.
    """
    options: frozenset[str] = frozenset()
    """The fields of ParallelismConfig that have a meaning with this strategy and not with all."""
    shards_optimizer_alone: bool = False
    """Whether the optimizer's state is sharded though every rank holds the whole model."""
    commits_early: bool = False
    """Whether each rank gets the gradients of the whole model, so that the all-reduce of the commit
    need not wait for them.
    """
    recoverable_in_place: bool = False
    """Whether a rank's state is worth keeping when its generation ends, because other ranks hold
    the same or the rest of it.
    """
    rank_per_device: bool = True
    """Whether each device has a rank of its own; otherwise one process uses all devices."""

    @property
    def shards_parameters(self) -> bool:
        """Whether a rank holds only a part of the parameters and their optimizer state."""
        return "shard" in self.dimensions

    @property
    def replicates(self) -> bool:
        """Whether the model is copied along a dimension."""
        return "replicate" in self.dimensions

    @property
    def has_shard_groups(self) -> bool:
        """Whether `shardGroupSize` gives the number of ranks that share one copy of the model."""
        return self.shards_parameters and self.replicates

    @property
    def shards(self) -> bool:
        """Whether a rank holds only a part of the parameters or of the optimizer's state."""
        return self.shards_parameters or self.shards_optimizer_alone

    @property
    def takes_model_parallelism(self) -> bool:
        """Whether tensor, pipeline and context parallelism can be combined with it."""
        return self.options >= _MODEL_PARALLEL_OPTIONS

    def data_sizes(self, copies: int, shard_group_size: int | None) -> tuple[int, int]:
        """The sizes of (replicate, shard) for the ranks that model parallelism leaves over.

        `copies` is the world size divided by the ranks that must be there for one copy.
        """
        if self.replicates:
            return copies, shard_group_size or 1
        return 1, copies


STRATEGIES: dict[StrategyName, Strategy] = {
    "ddp": Strategy(
        ("replicate",),
        options=BUCKET_OPTIONS | _MODEL_PARALLEL_OPTIONS,
        commits_early=True,
        recoverable_in_place=True,
    ),
    "zero": Strategy(
        ("replicate",), options=BUCKET_OPTIONS, shards_optimizer_alone=True, commits_early=True
    ),
    "fsdp": Strategy(("shard",), options=_SHARDING_OPTIONS | _MODEL_PARALLEL_OPTIONS),
    "hsdp": Strategy(
        ("replicate", "shard"),
        options=_SHARDING_OPTIONS | _MODEL_PARALLEL_OPTIONS,
        recoverable_in_place=True,
    ),
    "dp": Strategy(("replicate",), rank_per_device=False),
}
"""Simplest first: a plan prefers an earlier one where both are equally fast. `dp` is never planned,
since it is not distributed.
"""
STRATEGY_OPTIONS: frozenset[str] = frozenset().union(*(one.options for one in STRATEGIES.values()))
"""The fields of ParallelismConfig that not every strategy takes."""
