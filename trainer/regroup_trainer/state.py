"""The state of a training run: all that a checkpoint, a peer transfer or a snapshot ever sees."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


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
