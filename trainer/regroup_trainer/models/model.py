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

    @abstractmethod
    def initial_value(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """The initial value of a whole (unsharded) parameter, on the CPU."""
