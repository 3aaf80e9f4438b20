"""Tokens from a formula: no files, any number of samples, and something to learn.

Each sample counts upwards from its own start, in its own stride, modulo the size of the vocabulary.
Both follow from its number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from regroup_trainer.data.dataset import Arrays
from regroup_trainer.data.order_arrays import Ids, mix
from regroup_trainer.data.tokenizer import BYTE_VALUES
from regroup_trainer.protocol.config import DataConfig

_SAMPLES = 2**20
_LARGEST_STRIDE = 8


@dataclass(frozen=True)
class Synthetic:
    """Samples of `sequence_length` tokens (T)."""

    samples: int
    held_out_samples: int
    classes: int
    sequence_length: int

    @property
    def fingerprint(self) -> str:
        """All that the tokens depend on."""
        return f"synthetic-{self.samples}-{self.classes}-{self.sequence_length}"

    @property
    def targets_per_sample(self) -> int:
        """T."""
        return self.sequence_length

    def read_training(self, ids: Ids) -> Arrays:
        """Training samples, [B, T]."""
        return self._read(ids)

    def read_held_out(self, ids: Ids) -> Arrays:
        """Held-out samples, [B, T]: those with the numbers that follow."""
        return self._read(ids + self.samples)

    def _read(self, numbers: Ids) -> Arrays:
        random = mix(numbers.astype(np.uint64))[:, None]
        starts, strides = random % np.uint64(self.classes), random >> np.uint64(32)
        strides = np.uint64(1) + strides % np.uint64(_LARGEST_STRIDE)
        places = np.arange(self.sequence_length + 1, dtype=np.uint64)
        tokens = ((starts + strides * places) % np.uint64(self.classes)).astype(np.int64)
        return Arrays(tokens[:, :-1], tokens[:, 1:])


def load_synthetic(config: DataConfig, sequence_length: int) -> Synthetic:
    """The samples that the configuration describes."""
    samples = config.samples or _SAMPLES
    held_out = max(1, samples * config.held_out_percent // 100)
    return Synthetic(samples, held_out, config.classes or BYTE_VALUES, sequence_length)
