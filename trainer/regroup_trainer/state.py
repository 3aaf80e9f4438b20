"""The state of a training run: all that a checkpoint, a peer transfer or a snapshot ever sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from regroup_trainer.zero import own_part


class Stateful(Protocol):
    """What a run can carry along: a scheduler, a counter, an average of the weights."""

    def state_dict(self) -> dict[str, Any]:
        """Its state; must pickle."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """The inverse."""


@dataclass(frozen=True)
class Position:
    """How far a run has come. Schedule, sample order and random numbers are functions of it and of the seed."""

    step: int = 0
    """Steps completed."""
    samples: int = 0
    """Samples consumed: the next batch begins here."""
    tokens: int = 0
    """Tokens trained on."""


@dataclass
class TrainState:
    """Parameters, optimizer state and position."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    position: Position
    extra: dict[str, Stateful] = field(default_factory=dict)
    """Other objects that belong to the run, by name; equal on all ranks."""

    @property
    def bare_model(self) -> nn.Module:
        """The model by its own parameters' names, as far as torch does not see through the wrapper by itself."""
        module = self.model.module if isinstance(self.model, nn.DataParallel) else self.model
        assert isinstance(module, nn.Module)
        return module

    @property
    def own_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that holds this rank's part of the state."""
        return own_part(self.optimizer)
