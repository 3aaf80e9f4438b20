"""A byte-level decoder-only transformer: pre-norm, rotary positions, tied embeddings.

Sources: GPT-2 (Radford et al., 2019) for the blocks and the scaled initialisation of residual projections; RoFormer
(Su et al., 2021) for rotary positions; Press & Wolf, 2017, for tying input and output embeddings.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn

from regroup_trainer.config import Dimensions

VOCABULARY = 256
_INITIAL_DEVIATION = 0.02
_ROTARY_BASE = 10000.0


def rotary_angles(length: int, head_width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotation of each pair of channels at each position, [T, head_width / 2] each."""
    pairs = torch.arange(0, head_width, 2, dtype=torch.float32, device=device)
    frequencies = _ROTARY_BASE ** (-pairs / head_width)
    angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs of channels of x [B, H, T, D] by the angles [T, D / 2] of their positions."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, size: Dimensions) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.project_in = nn.Linear(size.width, 3 * size.width, bias=False)
        self.project_out = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        # Heads outermost and counted by what comes: a rank may hold the rows of some heads only.
        qkv = self.project_in(x).unflatten(-1, (-1, 3, self.head_width))
        query, key, value = qkv.permute(3, 0, 2, 1, 4)  # [B, H, T, D] each
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.project_out(mixed.transpose(1, 2).flatten(2))
        return projected


class Block(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and beside a residual connection."""

    def __init__(self, size: Dimensions) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width, bias=False)
        self.attention = Attention(size)
        self.feed_forward_norm = nn.LayerNorm(size.width, bias=False)
        self.widen = nn.Linear(size.width, 4 * size.width, bias=False)
        self.project_out = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        widened = F.gelu(self.widen(self.feed_forward_norm(x)))
        result: Tensor = x + self.project_out(widened)
        return result


class TiedHead(nn.Module):
    """The output layer: the embedding's weights again."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """[B, T, C], [V, C] -> logits [B, T, V]."""
        return F.linear(x, weight)


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, size: Dimensions) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.final_norm = nn.LayerNorm(size.width, bias=False)
        self.head = TiedHead()

    def forward(self, tokens: Tensor) -> Tensor:
        """Bytes [B, T] -> logits [B, T, 256]."""
        # Not a buffer: what can be computed from the shape alone needs no place in checkpoints or on the meta device.
        cosine, sine = rotary_angles(tokens.shape[1], self.head_width, tokens.device)
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cosine, sine)
        logits: Tensor = self.head(self.final_norm(x), self.embedding.weight)
        return logits

    def initial_value(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """The starting value of a whole (unsharded) parameter."""
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        deviation = _INITIAL_DEVIATION
        if name.endswith("project_out.weight"):  # two of them per block add to the residual stream
            deviation /= (2 * len(self.blocks)) ** 0.5
        return torch.empty(shape).normal_(0.0, deviation, generator=generator)
