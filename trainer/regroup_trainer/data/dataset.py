"""What the trainer needs of a dataset, whatever its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from regroup_trainer.data.order_arrays import Ids

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Arrays:
    """B samples: inputs of the model, and the targets it should predict."""

    inputs: Array
    """[B, ...]: token ids [B, T] of int64, or images [B, C, H, W] of float32."""
    targets: Array
    """[B, ...] of int64: the classes to predict, `targets_per_sample` of them for each sample."""


class Dataset(Protocol):
    """Samples by number. Reading one depends on its number alone, and takes the same time for
    each.
    """

    @property
    def fingerprint(self) -> str:
        """Equal for two datasets that have the same samples under the same numbers."""

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
        """Targets are below this: the size of the vocabulary, or the number of classes of
        images.
        """

    def read_training(self, ids: Ids) -> Arrays:
        """Training samples. Raises DataError; OSError where a volume does not give them now."""

    def read_held_out(self, ids: Ids) -> Arrays:
        """Samples for evaluation. Raises as `read_training` does."""
