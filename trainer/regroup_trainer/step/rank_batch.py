"""What a rank trains on in one step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DeviceBatch:
    """A micro-batch of B samples on its device."""

    inputs: Tensor
    """[B, ...]"""
    targets: Tensor
    """[B, ...], of the shape of the predictions."""
    weights: Tensor
    """[B]: 1 for a sample of this rank, 0 for a repeat that only fills the shape."""


@dataclass(frozen=True)
class RankBatch:
    """A rank's share of the global batch."""

    micro_batches: list[DeviceBatch]
    samples: int
    """Number of samples in the share, without repeats."""
    digest: int
    """`order.digest` of the share's sample ids."""
