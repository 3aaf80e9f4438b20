"""Trades time for memory: activations are computed again in the backward pass instead of being
kept.

`full` keeps only the inputs of blocks (Chen et al., 2016). `selective` also keeps the results of
matrix products, convolutions and attention, and recomputes the cheap rest (Korthikanti et al.,
2022, by torch's policy).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from regroup_trainer.models import Model

_aten = torch.ops.aten
KEPT = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten.convolution.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
]
"""Operations whose results `selective` keeps: recomputing them costs much for each byte that it
saves.
"""


def checkpoint_activations(model: Model, mode: str) -> None:
    """Recompute the forward pass of each block in its backward pass; `mode` is `none`, `selective`
    or `full`.

    Blocks keep their names, parameters and hooks.
    """
    if mode == "none":
        return
    options: dict[str, Any] = {
        "use_reentrant": False,
        "preserve_rng_state": False,
    }  # the models draw no random numbers
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, KEPT)
    for block in model.blocks:
        block.forward = repeated(block.forward, options)


def repeated(forward: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """`forward`, called through torch's checkpoint."""

    def call(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, **options)

    return call
