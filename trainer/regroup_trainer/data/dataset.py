"""What the trainer asks of its samples, whatever they are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from regroup_trainer.order_arrays import Ids

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Arrays:
    """B samples, as they go into the model and as they should come out of it."""

    inputs: Array
    """[B, ...]: token ids [B, T] of int64, or images [B, C, H, W] of float32."""
    targets: Array
    """[B, ...] of int64: the classes to predict, `targets_per_sample` of them for each sample."""


class Dataset(Protocol):
    """Samples by number. Reading one depends on its number alone and costs the same wherever it lies."""

    @property
    def fingerprint(self) -> str:
        """Tells whether two datasets have the same samples under the same numbers."""

    @property
    def samples(self) -> int:
        """Training samples per epoch, at least one."""

    @property
    def held_out_samples(self) -> int:
        """Samples for evaluation, none of which is trained on."""

    @property
    def targets_per_sample(self) -> int:
        """Predictions that a sample asks for: T of a text, 1 of an image."""

    @property
    def classes(self) -> int:
        """Targets are below this: the size of the vocabulary, or the number of classes of images."""

    def read_training(self, ids: Ids) -> Arrays:
        """Training samples. Raises DataError."""

    def read_held_out(self, ids: Ids) -> Arrays:
        """Samples for evaluation. Raises DataError."""
