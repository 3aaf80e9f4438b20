"""Which samples of a step a rank trains on, and in which micro-batches.

The global batch is constant: another world size divides the same samples differently. Every rank
runs the same number of micro-batches of the same shape, since sharded models communicate in each of
them. Where a rank has fewer samples, repeats of a real sample at weight 0 fill the gaps (never
arbitrary values: NaN x 0 is NaN).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from regroup_trainer.data import order_arrays
from regroup_trainer.data.order import SampleOrder
from regroup_trainer.data.order_arrays import Ids
from regroup_trainer.protocol.config import micro_batch_shape


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Samples of one forward pass, B of them."""

    ids: Ids
    """[B]"""
    weights: npt.NDArray[np.float32]
    """[B]: 1 for a sample of this rank's share, 0 for a repeat."""


def share(count: int, rank: int, world_size: int) -> range:
    """The rank's contiguous part of range(count). The sizes of parts differ by at most one."""
    return range(count * rank // world_size, count * (rank + 1) // world_size)


def virtual_shards(count: int, micro_batch_size: int) -> int:
    """The number of micro-batches into which a single rank divides a global batch of `count`
    samples.
    """
    return -(-count // micro_batch_size)


def micro_batches(
    ids: Ids, rank: int, world_size: int, micro_batch_size: int, multiple: int = 1
) -> list[MicroBatch]:
    """Divide the rank's share of a global batch (at least one sample) into micro-batches of one
    shape on all ranks.

    Their number is a multiple of `multiple`, the ranks of a pipeline, so that none of these idles.
    """
    passes, size = micro_batch_shape(len(ids), world_size, micro_batch_size, multiple)
    own = share(len(ids), rank, world_size)
    padded = np.full(passes * size, ids[0])
    padded[: len(own)] = ids[own.start : own.stop]
    weights = np.zeros(passes * size, dtype=np.float32)
    weights[: len(own)] = 1.0
    rows = zip(padded.reshape(passes, size), weights.reshape(passes, size), strict=True)
    return [MicroBatch(*row) for row in rows]


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """What a rank trains on in a step."""

    first: int
    """Position of the global batch in the stream of samples."""
    count: int
    """Number of samples of the global batch."""
    own_ids: Ids
    """This rank's share."""
    micro_batches: tuple[MicroBatch, ...]


@dataclass(frozen=True)
class BatchPlanner:
    """Makes the plan of any step of a rank, from the position alone."""

    order: SampleOrder
    global_batch_size: int
    micro_batch_size: int
    rank: int
    world_size: int
    multiple: int = 1
    """The number of micro-batches is a multiple of this: the ranks of a pipeline."""
    exact: bool = False
    """Whether ranks share virtual shards: micro-batches that are the same for every world size."""

    def plan(self, first: int) -> BatchPlan:
        """The plan of the global batch that begins at position `first`."""
        ids = order_arrays.ids(self.order, range(first, first + self.global_batch_size))
        return self._of_virtual_shards(first, ids) if self.exact else self._of_samples(first, ids)

    def _of_samples(self, first: int, ids: Ids) -> BatchPlan:
        own = share(len(ids), self.rank, self.world_size)
        parts = micro_batches(ids, self.rank, self.world_size, self.micro_batch_size, self.multiple)
        return BatchPlan(first, len(ids), ids[own.start : own.stop], tuple(parts))

    def _of_virtual_shards(self, first: int, ids: Ids) -> BatchPlan:
        shards = micro_batches(ids, 0, 1, self.micro_batch_size)
        own = share(len(shards), self.rank, self.world_size)
        size = len(shards[0].ids)
        return BatchPlan(
            first,
            len(ids),
            ids[own.start * size : own.stop * size],
            tuple(shards[own.start : own.stop]),
        )
