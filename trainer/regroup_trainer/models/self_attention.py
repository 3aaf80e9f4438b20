"""Attention of a sequence to itself, as the decoders use it."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries [B, H, T, D], keys and values [B, H or fewer, T, D] -> [B, H, T, D]."""


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each position sees itself and those before it; several heads of queries may share one of keys
    and values.
    """
    grouped = key.shape[1] != query.shape[1]
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
