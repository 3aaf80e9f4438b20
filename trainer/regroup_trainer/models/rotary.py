"""Rotary positions (RoFormer, Su et al., 2021): queries and keys are turned by an angle that grows
with the position.

The two channels of a pair are half a head apart, as in Hugging Face's layout of Llama.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regroup_trainer.protocol.config import Dimensions, RotaryScaling


def rotary_angles(length: int, size: Dimensions, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotation of each pair of channels at each position, [T, D / 2] each,
    float32.
    """
    head_width = size.width // size.heads
    pairs = torch.arange(0, head_width, 2, dtype=torch.float32, device=device)
    frequencies = size.rotary_base ** (-pairs / head_width)
    if size.rotary_scaling:
        frequencies = scaled(frequencies, size.rotary_scaling)
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def scaled(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Frequencies in radians per token, of which the low ones are divided by the factor.

    Between the two bounds it is a mean of both, weighted by the turns in the original context.
    Source: the published code of Llama 3.1 (Grattafiori et al., 2024).
    """
    turns = scaling.original_length * frequencies / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs of channels of x [B, H, T, D] by the angles [T, D / 2] of their positions."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1).to(
        x.dtype
    )
