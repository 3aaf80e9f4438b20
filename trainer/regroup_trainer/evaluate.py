"""Loss on the held-out part, shared out over the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from regroup_trainer.config import TrainConfig
from regroup_trainer.mesh import arrange
from regroup_trainer.parallelize import forward_precision
from regroup_trainer.state import TrainState
from regroup_trainer.step import DeviceBatch, loss_sum
from regroup_trainer.world import World


@torch.no_grad()
def evaluate(state: TrainState, batches: list[DeviceBatch], config: TrainConfig, world: World) -> float:
    """Mean loss per token in nats over the batches of all ranks, the same number on all of them."""
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)  # loss, tokens
    state.model.eval()
    for batch in batches:
        with forward_precision(state.model, config, world.device):
            logits = state.model(batch.inputs)
        sums[0] += loss_sum(logits, batch.targets, batch.weights)
        sums[1] += batch.weights.sum() * batch.targets[0].numel()
    state.model.train()
    if isinstance(state.model, FSDPModule):
        state.model.reshard()  # no backward pass does it here
    if not arrange(config.parallelism, world).counts:
        sums.zero_()  # another rank counts the same samples
    dist.all_reduce(sums)
    loss, tokens = sums.tolist()
    return float(loss / tokens)
