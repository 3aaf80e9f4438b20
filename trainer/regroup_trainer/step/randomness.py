"""Seeds generators by seed and position, so that a resumed run draws the same random numbers as an
undisturbed one.
"""

from __future__ import annotations

import random

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def seed_tensors(device: torch.device, seed: int) -> None:
    """Seed torch's generators of the CPU and of one device. It is cheap enough for every step;
    torch.manual_seed is not.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)
