"""Llama: grouped-query attention, SwiGLU, RMSNorm, rotary positions.

Sources: Llama 3 (Grattafiori et al., 2024); grouped queries (Ainslie et al., 2023); SwiGLU
(Shazeer, 2020). `rotary` has the positions, with the scaling of Llama 3.1 and 3.2 for long contexts
where `dimensions.rotaryScaling` asks for it. Every parameter has its counterpart in Hugging Face's
layout (`hugging_face_name`).
"""

from __future__ import annotations

import re

import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor, nn

from regroup_trainer.models.decoder import Decoder
from regroup_trainer.models.rotary import rotate
from regroup_trainer.models.self_attention import Attend, causal_attention
from regroup_trainer.protocol.config import Dimensions, ModelConfig

NORM_EPSILON = 1e-5

_IN_HUGGING_FACE = {
    "embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.project_out": "self_attn.o_proj",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward.gate": "mlp.gate_proj",
    "feed_forward.widen": "mlp.up_proj",
    "feed_forward.project_out": "mlp.down_proj",
}
"""Our module -> Hugging Face's; within a block both are relative to it."""


def hugging_face_name(name: str) -> str:
    """The name of our parameter `name` in Hugging Face's LlamaForCausalLM. Raises KeyError for an
    unknown one.
    """
    module, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blocks\.(\d+)\.(.+)", module)
    if block:
        return f"model.layers.{block[1]}.{_IN_HUGGING_FACE[block[2]]}.{kind}"
    return f"{_IN_HUGGING_FACE[module]}.{kind}"


def feed_forward_width(size: Dimensions) -> int:
    """Inner channels: as configured, or 8/3 of the width, rounded up to a multiple of 8 (as many
    weights as GPT's 4x).
    """
    return size.feed_forward_width or -(-8 * size.width // 3 // 8) * 8


class LlamaAttention(nn.Module):
    """Causal self-attention in which several heads of queries share one of keys and values."""

    def __init__(self, size: Dimensions) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        key_value_width = (size.key_value_heads or size.heads) * self.head_width
        self.query = nn.Linear(size.width, size.width, bias=False)
        self.key = nn.Linear(size.width, key_value_width, bias=False)
        self.value = nn.Linear(size.width, key_value_width, bias=False)
        self.project_out = nn.Linear(size.width, size.width, bias=False)
        self.attend: Attend = causal_attention

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        query, key, value = (
            self._heads(self.query(x)),
            self._heads(self.key(x)),
            self._heads(self.value(x)),
        )
        query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        mixed = self.attend(query, key, value)
        projected: Tensor = self.project_out(mixed.transpose(1, 2).flatten(2))
        return projected

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, H x D] -> [B, H, T, D]. H is inferred, since tensor parallelism leaves only some
        heads.
        """
        heads: Tensor = x.unflatten(-1, (-1, self.head_width))  # type: ignore[no-untyped-call]
        return heads.transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, size: Dimensions) -> None:
        super().__init__()
        inner = feed_forward_width(size)
        self.gate = nn.Linear(size.width, inner, bias=False)
        self.widen = nn.Linear(size.width, inner, bias=False)
        self.project_out = nn.Linear(inner, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        result: Tensor = self.project_out(F.silu(self.gate(x)) * self.widen(x))
        return result


class LlamaBlock(nn.Module):
    """Attention and perceptron, each behind a norm and beside a residual connection."""

    def __init__(self, size: Dimensions) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(size.width, eps=NORM_EPSILON)
        self.attention = LlamaAttention(size)
        self.feed_forward_norm = nn.RMSNorm(size.width, eps=NORM_EPSILON)
        self.feed_forward = FeedForward(size)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = x + self.attention(self.attention_norm(x), cosine, sine)
        result: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class Llama(Decoder):
    """The transformer of Llama's proportions; small sizes tie their embeddings."""

    def __init__(self, config: ModelConfig, classes: int) -> None:
        super().__init__(config, classes, tied=config.size.tied_embeddings)

    def block(self) -> nn.Module:
        """Rotary attention and SwiGLU: [B, T, C] -> [B, T, C], given cosine and sine."""
        return LlamaBlock(self.size)

    def norm(self) -> nn.Module:
        """RMSNorm."""
        return nn.RMSNorm(self.size.width, eps=NORM_EPSILON)
