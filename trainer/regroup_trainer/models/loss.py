"""Cross entropy as a weighted sum, at once or in chunks.

It is a sum and never a mean: sums of parts add up to the sum of the whole, however samples are
divided over ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint


def loss_sum(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of the cross entropy of logits [B, ..., V] with targets [B, ...] and weights
    [B]; in nats, float32.
    """
    losses = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), reduction="none")
    if isinstance(
        losses, DTensor
    ):  # of logits that are sharded along the vocabulary; every rank has all losses
        losses = losses.to_local()
    return (losses.view(len(weights), -1) * weights[:, None]).sum()


def chunked_loss_sum(
    head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, weights: Tensor, chunks: int
) -> Tensor:
    """`loss_sum` of head(hidden), hidden [B, T, C]. Only one of `chunks` parts of the logits is in
    memory at a time.

    Logits are computed again in the backward pass, which costs one more product with the head's
    weights. The idea is from Cut Your Losses (Wijmans et al., 2024), here without a kernel of its
    own.
    """
    weight_of_each = weights[:, None].expand_as(targets).flatten()
    flat = (hidden.flatten(0, 1), targets.flatten(), weight_of_each)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    for part in zip(*(tensor.chunk(chunks) for tensor in flat), strict=True):
        total = total + checkpoint(
            _loss_of_part, head, *part, use_reentrant=False, preserve_rng_state=False
        )
    return total


def _loss_of_part(
    head: Callable[[Tensor], Tensor], hidden: Tensor, targets: Tensor, weights: Tensor
) -> Tensor:
    return loss_sum(head(hidden), targets, weights)
