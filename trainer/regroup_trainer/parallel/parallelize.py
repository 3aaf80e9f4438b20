"""From a model on the meta device to one that is allocated, initialised and distributed over the
ranks.

Every strategy sums gradients over the ranks and never averages them. The loss is scaled by a
constant beforehand, so that the results do not depend on the world size.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import ReplicateModule
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.models import Model
from regroup_trainer.parallel.activation_checkpointing import checkpoint_activations
from regroup_trainer.parallel.compilation import compile_blocks
from regroup_trainer.parallel.context_parallel import require_slices, slice_sequences
from regroup_trainer.parallel.data_parallel import DATA_PARALLEL, replicate_as_it_is
from regroup_trainer.parallel.determinism import require_determinism
from regroup_trainer.parallel.mesh import arrange
from regroup_trainer.parallel.pipeline import Pipeline, require_stages, split_into_stages, stages_of
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.parallel.tensor_parallel import require_divisible, split_layers
from regroup_trainer.parallel.zero import shard_optimizer
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.strategies import STRATEGIES
from regroup_trainer.system.log_lines import rank_log


def parallelize(model: Model, config: TrainConfig, group: GenerationGroup) -> nn.Module:
    """Distribute `model`, which is on the meta device, as configured. Raises ConfigurationError."""
    if config.training.deterministic == "exact":
        require_determinism()
    _require_possible(config)
    mesh = arrange(config.parallelism, group)
    devices = mesh.connect(group.device.type)
    if group.is_rank0 and len(mesh.named) > 1:
        rank_log.info("%s", mesh.describe())
    if mesh.sizes.context > 1:
        slice_sequences(model, mesh.connect_context(group.device.type))
    if mesh.sizes.pipeline == 1:
        return _wrap(model, config, group, devices)
    # The stack of blocks is split first; all else is done to each part of it.
    parts = split_into_stages(model, stages_of(mesh.place.pipeline, config.parallelism))
    for part in parts.values():
        _wrap(part, config, group, devices)
    return Pipeline(parts, config, mesh, devices)


def _wrap(
    model: Model, config: TrainConfig, group: GenerationGroup, devices: DeviceMesh
) -> nn.Module:
    # Tensor parallelism first: it shards the layers; the following steps work with what is left of
    # them.
    if config.parallelism.tensor_parallel > 1:
        split_layers(model, devices["tensor"])
    # Before compilation, so that the compiler sees what is kept and what is recomputed.
    checkpoint_activations(model, config.training.activation_checkpointing)
    # Before the wrappers, so that their hooks stay outside of the compiled functions.
    if config.training.compile:
        compile_blocks(model, group.device)
    # Data parallelism last: it wraps, gathers and reduces what the other steps made of the model.
    return DATA_PARALLEL[config.parallelism.strategy](model, config, group, devices)


def _require_possible(config: TrainConfig) -> None:
    layout = config.parallelism
    strategy = STRATEGIES[layout.strategy]
    whole_head = layout.tensor_parallel * layout.pipeline_parallel == 1 and strategy.rank_per_device
    if config.model.loss_chunks > 1 and not whole_head:
        raise ConfigurationError(
            f"model.lossChunks: {config.model.loss_chunks} needs the whole head on each rank: set "
            "it to 1, or leave "
            f"out tensorParallel, pipelineParallel and strategy dp"
        )
    if config.optimizer.name == "muon" and (
        layout.tensor_parallel > 1 or strategy.shards_optimizer_alone
    ):
        raise ConfigurationError(
            "optimizer.name: 'muon' works on whole matrices, or on those that fsdp and hsdp shard: "
            "use 'adamw', or "
            "leave out tensorParallel and strategy zero"
        )
    if layout.tensor_parallel > 1:
        require_divisible(config)
    if layout.pipeline_parallel > 1:
        require_stages(config)
    if layout.context_parallel > 1:
        require_slices(config)


def parallelize_again(model: nn.Module, config: TrainConfig, group: GenerationGroup) -> nn.Module:
    """Wrap a replicated model, whose process group is gone, for a new one. Parameters and compiled
    functions stay.
    """
    bare = model.module if isinstance(model, DistributedDataParallel) else model
    for parameter in bare.parameters():
        parameter.grad = None  # a view of the old wrapper's buckets
    devices = arrange(config.parallelism, group).connect(group.device.type)
    return replicate_as_it_is(bare, config, devices)


def parallelize_optimizer(
    optimizer: torch.optim.Optimizer, config: TrainConfig
) -> torch.optim.Optimizer:
    """Shard the state of an optimizer where the strategy shards it alone."""
    strategy = STRATEGIES[config.parallelism.strategy]
    return shard_optimizer(optimizer) if strategy.shards_optimizer_alone else optimizer


def reduce_gradients(model: nn.Module, enabled: bool) -> None:
    """Set whether the next backward pass reduces gradients, or only accumulates them on each rank.

    Where parameters are sharded, gradients are reduced to shards in any case, because whole ones
    would not fit. Then only the sum over the replicas waits.
    """
    match model:
        case ReplicateModule():
            model.set_requires_gradient_sync(enabled)
        case FSDPModule():
            model.set_requires_all_reduce(enabled)
        case DistributedDataParallel():
            model.require_backward_grad_sync = (
                enabled  # as its `no_sync` does, without a frame that refers to it
            )


def reshard(model: nn.Module) -> None:
    """Free what forward passes have gathered, where no backward pass does so."""
    if isinstance(model, FSDPModule):
        model.reshard()


def forward_precision(
    model: nn.Module, config: TrainConfig, device: torch.device
) -> AbstractContextManager[object]:
    """The context of a forward pass: autocast for bf16, unless FSDP2 casts."""
    if config.training.precision == "bf16" and not isinstance(model, FSDPModule):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
