"""The forward pass of the built-in trainer: from a micro-batch to its loss."""

from __future__ import annotations

from torch import Tensor, nn

from regroup_trainer.models.loss import loss_sum
from regroup_trainer.parallel.compilation import compiled_loss_sum
from regroup_trainer.parallel.parallelize import forward_precision
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.step.rank_batch import DeviceBatch


def forward(model: nn.Module, batch: DeviceBatch, config: TrainConfig) -> Tensor:
    """The weighted sum of the losses of a micro-batch."""
    with forward_precision(model, config, batch.inputs.device):
        if config.model.loss_chunks > 1:
            loss: Tensor = model(batch.inputs, batch.targets, batch.weights)
            return loss
        logits = model(batch.inputs)
    # Logits of a model-parallel model may be sharded; only the plain loss is tested with these.
    compiled = config.training.compile and not config.parallelism.is_model_parallel
    compute = compiled_loss_sum() if compiled else loss_sum
    return compute(logits, batch.targets, batch.weights)
