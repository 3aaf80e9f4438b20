"""Which samples a rank of a user's own loop trains on, as lists of ids that torch's DataLoader reads.

The order, and a rank's share of each step, are those of the built-in trainer. Only the cutting into micro-batches
differs: these are not padded to one shape, so that the mean of a micro-batch is the mean of its samples. A rank without
a sample reads one all the same, at weight 0, since all ranks communicate in every micro-batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from regroup_trainer import order_arrays
from regroup_trainer.batch import share
from regroup_trainer.order import SampleOrder

_IDS_AT_ONCE = 4096
"""Small steps are looked up in the order together, which costs as much as one of them."""


@dataclass(frozen=True)
class Part:
    """A micro-batch of a rank."""

    first: int
    """Position of its first sample in the stream of samples."""
    samples: int
    """That count: 0 where the rank has none of its own."""
    last: bool
    """Of the step."""
    digest: int
    """`order.digest` of the rank's whole share, in its last part; 0 in the others."""


@dataclass(frozen=True)
class Shares:
    """How the ranks share the samples of each step."""

    order: SampleOrder
    global_batch_size: int
    micro_batch_size: int
    rank: int
    size: int
    """Ranks that share."""

    @property
    def passes(self) -> int:
        """Micro-batches of a step, on every rank."""
        largest = -(-self.global_batch_size // self.size)
        return -(-largest // self.micro_batch_size)

    def parts(self, first: int, steps: int) -> Iterator[tuple[Part, list[int]]]:
        """The micro-batches of so many steps from position `first` on, with the ids of their samples."""
        size, passes = self.global_batch_size, self.passes
        own = share(size, self.rank, self.size)
        cuts = [share(len(own), number, passes) for number in range(passes)]
        at_once = max(1, _IDS_AT_ONCE // size)
        for block in range(0, steps, at_once):
            begin, count = first + block * size, min(at_once, steps - block)
            ids = order_arrays.ids(self.order, range(begin, begin + count * size)).reshape(count, size)
            shares = ids[:, own.start : own.stop]
            for chosen, hashed in zip(shares.tolist(), order_arrays.digests(shares), strict=True):
                for cut in cuts:
                    last = cut is cuts[-1]
                    part = Part(begin + own.start + cut.start, len(cut), last, hashed if last else 0)
                    yield part, chosen[cut.start : cut.stop] or [self.order.sample(begin)]
                begin += size


class ShareSampler:
    """A batch sampler for torch's DataLoader, from one position of the stream on.

    A loader with workers asks ahead of what is trained; `parts` keeps what belongs to the batches that it has not
    delivered yet, in their order.
    """

    def __init__(self, shares: Shares, first: int, steps: int) -> None:
        self._shares = shares
        self._first = first
        self._steps = steps
        self.parts: deque[Part] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        for part, ids in self._shares.parts(self._first, self._steps):
            self.parts.append(part)
            yield ids

    def __len__(self) -> int:
        return self._steps * self._shares.passes
