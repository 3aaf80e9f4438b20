"""Rotary positions (RoFormer, Su et al., 2021): queries and keys are turned by an angle that grows
with the position.

The two channels of a pair are half a head apart, as in Hugging Face's layout of Llama.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_angles(
    length: int, head_width: int, base: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotation of each pair of channels at each position, [T, D / 2] each,
    float32.
    """
    pairs = torch.arange(0, head_width, 2, dtype=torch.float32, device=device)
    frequencies = base ** (-pairs / head_width)
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs of channels of x [B, H, T, D] by the angles [T, D / 2] of their positions."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1).to(
        x.dtype
    )
