"""GPT: pre-norm blocks of attention and a two-layer perceptron, rotary positions, tied embeddings,
no biases.

Blocks and initialisation are those of GPT-2 (Radford et al., 2019); positions are rotary instead of
learned.
"""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn

from regroup_trainer.models.decoder import Decoder
from regroup_trainer.models.rotary import rotate
from regroup_trainer.models.self_attention import Attend, causal_attention
from regroup_trainer.protocol.config import Dimensions, ModelConfig


class GptAttention(nn.Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, size: Dimensions) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.project_in = nn.Linear(size.width, 3 * size.width, bias=False)
        self.project_out = nn.Linear(size.width, size.width, bias=False)
        self.attend: Attend = causal_attention

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        # Heads are the outermost dimension, and their number is inferred: a rank may hold the rows
        # of some heads only.
        qkv = self.project_in(x).unflatten(-1, (-1, 3, self.head_width))
        query, key, value = qkv.permute(3, 0, 2, 1, 4)  # [B, H, T, D] each
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        mixed = self.attend(query, key, value)
        projected: Tensor = self.project_out(mixed.transpose(1, 2).flatten(2))
        return projected


class GptBlock(nn.Module):
    """Attention and a two-layer perceptron, each behind a norm and beside a residual connection."""

    def __init__(self, size: Dimensions) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width, bias=False)
        self.attention = GptAttention(size)
        self.feed_forward_norm = nn.LayerNorm(size.width, bias=False)
        self.widen = nn.Linear(size.width, 4 * size.width, bias=False)
        self.project_out = nn.Linear(4 * size.width, size.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        widened = F.gelu(self.widen(self.feed_forward_norm(x)))
        result: Tensor = x + self.project_out(widened)
        return result


class GPT(Decoder):
    """The transformer of GPT-2's proportions."""

    def __init__(self, config: ModelConfig, classes: int) -> None:
        super().__init__(config, classes, tied=True)

    def block(self) -> nn.Module:
        """Attention and perceptron of GPT-2: [B, T, C] -> [B, T, C]."""
        return GptBlock(self.size)

    def norm(self) -> nn.Module:
        """LayerNorm without bias."""
        return nn.LayerNorm(self.size.width, bias=False)
