"""What the scripts beside it train on: points of a linear rule, the same on every rank.

Each script is called as `script.py FOLDER EPOCHS`. It saves after each epoch in FOLDER, and at the
end its parameters in FOLDER/final.pt. Rank 0 prints `begins at epoch N` and a line for each epoch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

SAMPLES, INPUTS, HIDDEN, OUTPUTS = 2048, 10, 64, 5
BATCH_SIZE = 16
"""Of each rank."""


def arguments() -> tuple[Path, int]:
    """FOLDER, which may name an environment variable, and EPOCHS of the command line."""
    return Path(os.path.expandvars(sys.argv[1])), int(sys.argv[2])


def make_samples() -> TensorDataset:
    """Inputs (N, 10) and targets (N, 5)."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(SAMPLES, INPUTS, generator=generator)
    rule = torch.randn(INPUTS, OUTPUTS, generator=generator)
    return TensorDataset(inputs, inputs @ rule)


def make_model() -> nn.Module:
    """The same weights everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, OUTPUTS))
