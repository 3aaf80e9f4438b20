"""Loss on the held-out part, shared out over the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from regroup_trainer.config import TrainConfig
from regroup_trainer.mesh import arrange
from regroup_trainer.pipeline import Pipeline
from regroup_trainer.state import TrainState
from regroup_trainer.step import DeviceBatch, forward
from regroup_trainer.world import World


@torch.no_grad()
def evaluate(state: TrainState, batches: list[DeviceBatch], config: TrainConfig, world: World) -> float:
    """Mean loss per token in nats over the batches of all ranks, the same number on all of them."""
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)  # loss, tokens
    state.model.eval()
    if isinstance(state.model, Pipeline):
        sums[0] = state.model.evaluate_on(batches)
    else:
        sums[0] = _loss_sum(state, batches, config, world)
    sums[1] = sum(batch.weights.sum() * batch.targets[0].numel() for batch in batches)
    state.model.train()
    if not arrange(config.parallelism, world).counts_loss:
        sums.zero_()  # another rank counts the same samples
    dist.all_reduce(sums)
    loss, tokens = sums.tolist()
    return float(loss / tokens)


def _loss_sum(state: TrainState, batches: list[DeviceBatch], config: TrainConfig, world: World) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for batch in batches:
        total += forward(state.model, batch, config)
    if isinstance(state.model, FSDPModule):
        state.model.reshard()  # no backward pass does it here
    return total
