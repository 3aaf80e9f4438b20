"""Which samples a rank of a custom loop trains on, as lists of ids that torch's DataLoader reads.

The order, and a rank's share of each step, are those of the built-in trainer. Micro-batches differ:
they are not padded to one shape, so that the mean of a micro-batch is the mean of its samples. A
rank without a sample reads one all the same, at weight 0, since all ranks communicate in every
micro-batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from regroup_trainer.data import order_arrays
from regroup_trainer.data.batch import share
from regroup_trainer.data.order import SampleOrder

_IDS_AT_ONCE = 4096
"""The ids of several small steps are computed together, which takes as long as for one step."""


@dataclass(frozen=True)
class MicroBatchPart:
    """The samples of one forward and backward pass of a rank."""

    first: int
    """Position of its first sample in the stream of samples."""
    samples: int
    """The number of its samples that count; 0 where the rank has none of its own."""
    last: bool
    """Whether it is the last one of its step."""
    digest: int
    """`order.digest` of the rank's whole share, in the last part of a step; 0 in the others."""


@dataclass(frozen=True)
class Shares:
    """Divides the samples of each step over the ranks."""

    order: SampleOrder
    global_batch_size: int
    micro_batch_size: int
    rank: int
    size: int
    """The number of ranks."""

    @property
    def passes(self) -> int:
        """The number of micro-batches of a step, the same on every rank."""
        largest = -(-self.global_batch_size // self.size)
        return -(-largest // self.micro_batch_size)

    def parts(self, first: int, steps: int) -> Iterator[tuple[MicroBatchPart, list[int]]]:
        """The micro-batches of so many steps from position `first` on, with the ids of their
        samples.
        """
        size, passes = self.global_batch_size, self.passes
        own = share(size, self.rank, self.size)
        cuts = [share(len(own), number, passes) for number in range(passes)]
        at_once = max(1, _IDS_AT_ONCE // size)
        for block in range(0, steps, at_once):
            begin, count = first + block * size, min(at_once, steps - block)
            ids = order_arrays.ids(self.order, range(begin, begin + count * size)).reshape(
                count, size
            )
            shares = ids[:, own.start : own.stop]
            for chosen, hashed in zip(shares.tolist(), order_arrays.digests(shares), strict=True):
                for cut in cuts:
                    last = cut is cuts[-1]
                    part = MicroBatchPart(
                        begin + own.start + cut.start, len(cut), last, hashed if last else 0
                    )
                    yield part, chosen[cut.start : cut.stop] or [self.order.sample(begin)]
                begin += size


class ShareSampler:
    """A batch sampler for torch's DataLoader that begins at one position of the stream.

    A loader with workers asks for batches ahead of time. `parts` holds the parts of the batches
    that it has not delivered yet, in their order.
    """

    def __init__(self, shares: Shares, first: int, steps: int) -> None:
        self._shares = shares
        self._first = first
        self._steps = steps
        self.parts: deque[MicroBatchPart] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        for part, ids in self._shares.parts(self._first, self._steps):
            self.parts.append(part)
            yield ids

    def __len__(self) -> int:
        return self._steps * self._shares.passes
