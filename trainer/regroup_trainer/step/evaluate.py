"""Loss and, for images, accuracy on the held-out part. Each rank evaluates a share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from regroup_trainer.models.loss import loss_sum
from regroup_trainer.parallel.mesh import arrange
from regroup_trainer.parallel.parallelize import forward_precision, reshard
from regroup_trainer.parallel.pipeline import Pipeline
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.step.forward import forward
from regroup_trainer.step.rank_batch import DeviceBatch
from regroup_trainer.step.state import TrainState


@dataclass(frozen=True)
class Evaluation:
    """Means over the held-out samples of all ranks."""

    loss: float
    """Mean loss per token, in nats."""
    accuracy: float | None
    """Share of the images that are classified right; None for text."""


@torch.no_grad()
def evaluate(
    state: TrainState,
    batches: list[DeviceBatch],
    config: TrainConfig,
    group: GenerationGroup,
    alive: Callable[[], None],
) -> Evaluation:
    """Evaluate the model on the batches of all ranks; the result is the same on all of them.
    `alive` is called at each batch.
    """
    images = config.model.name == "resnet"
    sums = torch.zeros(
        3, dtype=torch.float64, device=group.device
    )  # loss, tokens, images that are right
    state.model.eval()
    if isinstance(state.model, Pipeline):
        sums[0] = state.model.evaluate_on(batches)
    elif images:
        sums[0], sums[2] = _classify(state, batches, config, alive)
    else:
        sums[0] = _loss_sum(state, batches, config, group, alive)
    sums[1] = sum(batch.weights.sum() * batch.targets[0].numel() for batch in batches)
    state.model.train()
    if not arrange(config.parallelism, group).counts_loss:
        sums.zero_()  # another rank counts the same samples
    dist.all_reduce(sums)
    loss, tokens, right = sums.tolist()
    return Evaluation(loss / tokens, right / tokens if images else None)


def _classify(
    state: TrainState, batches: list[DeviceBatch], config: TrainConfig, alive: Callable[[], None]
) -> tuple[float, float]:
    """The sum of the loss, and the number of images that are classified right."""
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
    state: TrainState,
    batches: list[DeviceBatch],
    config: TrainConfig,
    group: GenerationGroup,
    alive: Callable[[], None],
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64, device=group.device)
    for batch in batches:
        total += forward(state.model, batch, config)
        alive()
    reshard(state.model)
    return total
