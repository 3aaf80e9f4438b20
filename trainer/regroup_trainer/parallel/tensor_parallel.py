"""Tensor parallelism: each layer of a decoder is sharded over the ranks of the `tensor` dimension.

Projections into heads and inner channels are sharded by column, those back to the residual stream
by row (Megatron-LM, Shoeybi et al., 2019). Between them each rank keeps only its slice of the
sequence (sequence parallelism, Korthikanti et al., 2022). The logits stay sharded along the
vocabulary up to the loss (loss parallelism).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.models import Model
from regroup_trainer.models.decoder import Decoder
from regroup_trainer.protocol.config import TrainConfig

_loss_region = ExitStack()


class GatheringNorm(SequenceParallel):
    """A norm over a slice of the sequence; its result is gathered, because what follows needs all
    positions.
    """

    @staticmethod
    def _prepare_output_fn(_local: bool, _norm: nn.Module, outputs: Any, _mesh: DeviceMesh) -> Any:
        assert isinstance(outputs, DTensor)
        return outputs.redistribute(placements=(Replicate(),))


class WaitingRowwise(RowwiseParallel):
    """RowwiseParallel that waits for its result.

    RowwiseParallel returns a result that is still on its way; a compiled block sends no gradient
    back to that (torch 2.15).
    """

    @staticmethod
    def _prepare_output_fn(
        placements: Any, _local: bool, _module: nn.Module, outputs: Any, _mesh: DeviceMesh
    ) -> Any:
        return outputs.redistribute(placements=placements).to_local()


def require_divisible(config: TrainConfig) -> None:
    """Raises ConfigurationError when heads, sequence or model cannot be split into
    `parallelism.tensorParallel` parts.
    """
    parts = config.parallelism.tensor_parallel
    if config.model.name == "resnet":
        raise ConfigurationError(
            f"parallelism.tensorParallel: {parts} cannot split model.name {config.model.name!r}: "
            "use a transformer, or 1"
        )
    size = config.model.size
    sequence = config.training.sequence_length // config.parallelism.context_parallel
    for field, value in (
        ("heads of the model", size.heads),
        ("keyValueHeads of the model", size.key_value_heads or size.heads),
        ("training.sequenceLength of a rank", sequence),
    ):
        if value % parts:
            raise ConfigurationError(
                f"parallelism.tensorParallel: {parts} does not divide {value}, the {field}: choose "
                "a divisor of it"
            )


def split_layers(model: Model, mesh: DeviceMesh) -> None:
    """Shard the layers of `model`, or of a pipeline's part of it, over the one-dimensional `mesh`,
    into DTensors.
    """
    assert isinstance(model, Decoder)
    for block in model.blocks:
        _apply(block, mesh, _plan_of(block))
    ends: dict[str, ParallelStyle] = {}
    if model.starts or (model.ends and model.tied):
        ends["embedding"] = WaitingRowwise(input_layouts=Replicate(), output_layouts=Shard(1))
    if not model.starts:
        model.input_slices = mesh.size()
    if model.ends:
        ends["final_norm"] = GatheringNorm()
        if not model.tied:
            ends["head"] = ColwiseParallel(use_local_output=False)
    _apply(model, mesh, ends)
    # Never left: the backward pass needs it too, and pipelines run that themselves.
    _loss_region.enter_context(loss_parallel())


def _plan_of(block: nn.Module) -> dict[str, ParallelStyle]:
    """The plan, by the names that all decoders share."""
    plan: dict[str, ParallelStyle] = {}
    for name, module in block.named_modules():
        last = name.rpartition(".")[2]
        if last.endswith("norm"):
            plan[name] = GatheringNorm()
        elif last == "project_out":
            plan[name] = RowwiseParallel(output_layouts=Shard(1))
        elif isinstance(module, nn.Linear):
            plan[name] = ColwiseParallel()
    return plan


def _apply(module: nn.Module, mesh: DeviceMesh, plan: dict[str, ParallelStyle]) -> None:
    parallelize_module(module, mesh, plan)
