"""Which samples of a step a rank trains on, and in which micro-batches.

The global batch is constant: a world of another size splits the same samples differently. Every rank runs the same
number of equally shaped micro-batches, since sharded models communicate in each of them; where a rank has fewer samples
the gaps are filled with repeats of a real sample at weight 0 (never with garbage: NaN x 0 is NaN).
"""

from __future__ import annotations

from dataclasses import dataclass

from regroup_trainer.order import SampleOrder


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one forward pass, B of them."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]
    """1 for a sample of this rank's share, 0 for a repeat."""


def share(count: int, rank: int, world_size: int) -> range:
    """The rank's contiguous part of range(count); sizes differ by at most one."""
    return range(count * rank // world_size, count * (rank + 1) // world_size)


def micro_batches(ids: list[int], rank: int, world_size: int, micro_batch_size: int) -> list[MicroBatch]:
    """Split the rank's share of a global batch (at least one sample) into micro-batches of one shape on all ranks."""
    largest_share = -(-len(ids) // world_size)
    passes = -(-largest_share // micro_batch_size)
    size = -(-largest_share // passes)
    own = [ids[index] for index in share(len(ids), rank, world_size)]
    gaps = passes * size - len(own)
    padded = own + [ids[0]] * gaps
    weights = [1.0] * len(own) + [0.0] * gaps
    return [
        MicroBatch(tuple(padded[start : start + size]), tuple(weights[start : start + size]))
        for start in range(0, passes * size, size)
    ]


@dataclass(frozen=True)
class BatchPlan:
    """What a rank does in a step."""

    first: int
    """Position of the global batch in the stream of samples."""
    count: int
    """Samples of the global batch."""
    own_ids: tuple[int, ...]
    """This rank's share."""
    micro_batches: tuple[MicroBatch, ...]


@dataclass(frozen=True)
class BatchPlanner:
    """Makes the plan of any step of a rank from nothing but the position."""

    order: SampleOrder
    global_batch_size: int
    micro_batch_size: int
    rank: int
    world_size: int

    def plan(self, first: int) -> BatchPlan:
        """The plan of the global batch that begins at position `first`."""
        ids = self.order.ids(range(first, first + self.global_batch_size))
        own = share(len(ids), self.rank, self.world_size)
        parts = micro_batches(ids, self.rank, self.world_size, self.micro_batch_size)
        return BatchPlan(first, len(ids), tuple(ids[index] for index in own), tuple(parts))
