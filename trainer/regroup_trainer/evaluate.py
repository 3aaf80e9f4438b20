"""Loss on the held-out part, and accuracy on images, shared out over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from regroup_trainer.config import TrainConfig
from regroup_trainer.loss import loss_sum
from regroup_trainer.mesh import arrange
from regroup_trainer.parallelize import forward_precision, reshard
from regroup_trainer.pipeline import Pipeline
from regroup_trainer.state import TrainState
from regroup_trainer.step import DeviceBatch, forward
from regroup_trainer.world import World


@dataclass(frozen=True)
class Evaluation:
    """Means over the held-out samples of all ranks."""

    loss: float
    """Per token, in nats."""
    accuracy: float | None
    """Share of the images that are classified right; None of text."""


@torch.no_grad()
def evaluate(
    state: TrainState, batches: list[DeviceBatch], config: TrainConfig, world: World, alive: Callable[[], None]
) -> Evaluation:
    """How good the model is on the batches of all ranks; the same on all of them. `alive` is called at each batch."""
    images = config.model.name == "resnet"
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)  # loss, tokens, right ones
    state.model.eval()
    if isinstance(state.model, Pipeline):
        sums[0] = state.model.evaluate_on(batches)
    elif images:
        sums[0], sums[2] = _classify(state, batches, config, alive)
    else:
        sums[0] = _loss_sum(state, batches, config, world, alive)
    sums[1] = sum(batch.weights.sum() * batch.targets[0].numel() for batch in batches)
    state.model.train()
    if not arrange(config.parallelism, world).counts_loss:
        sums.zero_()  # another rank counts the same samples
    dist.all_reduce(sums)
    loss, tokens, right = sums.tolist()
    return Evaluation(loss / tokens, right / tokens if images else None)


def _classify(
    state: TrainState, batches: list[DeviceBatch], config: TrainConfig, alive: Callable[[], None]
) -> tuple[float, float]:
    """Sum of the loss, and how many classes are right."""
    loss = right = 0.0
    for batch in batches:
        with forward_precision(state.model, config, batch.inputs.device):
            logits = state.model(batch.inputs)
        loss += float(loss_sum(logits, batch.targets, batch.weights))
        alive()
        right += float(((logits.argmax(-1) == batch.targets) * batch.weights).sum())
    reshard(state.model)
    return loss, right


def _loss_sum(
    state: TrainState, batches: list[DeviceBatch], config: TrainConfig, world: World, alive: Callable[[], None]
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for batch in batches:
        total += forward(state.model, batch, config)
        alive()
    reshard(state.model)
    return total
