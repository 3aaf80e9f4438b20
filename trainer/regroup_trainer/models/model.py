"""What the trainer needs of a model, whatever its architecture."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from regroup_trainer.protocol.config import Dimensions


class Model(nn.Module, ABC):
    """A stack of blocks between an input layer and a head."""

    size: Dimensions
    classes: int
    blocks: nn.ModuleList
    """The units of sharding, activation checkpointing, compilation and pipelining."""

    def flops_per_token(self, sequence_length: int) -> float:
        """Operations of forward and backward for one token of a sequence; 0 where nobody has
        counted them.
        """
        del sequence_length
        return 0.0

    @abstractmethod
    def initial_value(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """The initial value of a whole (unsharded) parameter, on the CPU."""
