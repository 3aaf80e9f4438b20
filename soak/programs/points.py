"""What the scripts of a soak train on: a small regression, the same on every rank."""

from __future__ import annotations

import os

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

SAMPLES, INPUTS = 1009, 16
BATCH = 12
"""Samples of a step."""
STEPS = 1_000_000
PACE_SECONDS = float(os.environ.get("PACE_SECONDS", "0"))
"""Time that a step takes at least, so that a history stays small."""


def make_samples() -> TensorDataset:
    """Inputs and targets of a fixed rule."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator)
    return TensorDataset(inputs, rule(inputs, generator))


def rule(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """What is to be learned."""
    return torch.sin(inputs @ torch.randn(INPUTS, 4, generator=generator))


def make_model() -> nn.Module:
    """The same at the start of every run."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 64), nn.Tanh(), nn.Linear(64, 4))
