"""The state of a training run: what checkpoints, snapshots and transfers between ranks contain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from regroup_trainer.parallel.zero import own_part


class Stateful(Protocol):
    """An object whose state is saved with the run: a scheduler, a counter, an average of the
    weights.
    """

    def state_dict(self) -> dict[str, Any]:
        """The object's state: tensors and plain values, nested in dicts, lists and tuples."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object:
        """Set the state; the inverse of `state_dict`."""


@dataclass(frozen=True)
class Position:
    """How far a run has come. Learning rate, sample order and random numbers follow from it and
    from the seed.
    """

    step: int = 0
    """Steps completed."""
    samples: int = 0
    """Samples consumed; the next batch begins there."""
    tokens: int = 0
    """Tokens trained on."""


@dataclass
class TrainState:
    """Parameters, optimizer state and position."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    position: Position
    extra: dict[str, Stateful] = field(default_factory=dict)
    """Other objects of the run by name, equal on all ranks."""

    @property
    def bare_model(self) -> nn.Module:
        """The model without nn.DataParallel, a wrapper that torch's state dicts do not see
        through.
        """
        module = self.model.module if isinstance(self.model, nn.DataParallel) else self.model
        assert isinstance(module, nn.Module)
        return module

    @property
    def own_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that holds this rank's part of the state."""
        return own_part(self.optimizer)
