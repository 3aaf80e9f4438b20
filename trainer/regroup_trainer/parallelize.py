"""From a model on the meta device to one that is allocated, initialised and shared out over the ranks.

Every strategy sums gradients over the ranks and never averages them: the loss is scaled beforehand by a constant, which
keeps the mathematics independent of the world size.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import ReplicateModule
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer.activation_checkpointing import checkpoint_activations
from regroup_trainer.compilation import compile_blocks
from regroup_trainer.config import TrainConfig
from regroup_trainer.context_parallel import require_slices, slice_sequences
from regroup_trainer.data_parallel import DATA_PARALLEL, replicate_as_it_is
from regroup_trainer.determinism import require_determinism
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.mesh import arrange
from regroup_trainer.models import Model
from regroup_trainer.pipeline import Pipeline, cut, require_stages, stages_of
from regroup_trainer.tensor_parallel import require_divisible, split_layers
from regroup_trainer.world import World
from regroup_trainer.zero import share_out


def parallelize(model: Model, config: TrainConfig, world: World) -> nn.Module:
    """Share out `model`, which is on the meta device, as configured. Raises ConfigurationError."""
    if config.training.deterministic == "exact":
        require_determinism()
    _require_possible(config)
    mesh = arrange(config.parallelism, world)
    devices = mesh.connect(world.device.type)
    if world.leads and len(mesh.named) > 1:
        print(mesh.describe(), file=sys.stderr, flush=True)
    if mesh.sizes.context > 1:
        slice_sequences(model, mesh.connect_context(world.device.type))
    if mesh.sizes.pipeline == 1:
        return _wrap(model, config, world, devices)
    # The stack is cut first; all else is then done to each part of it.
    parts = cut(model, stages_of(mesh.place.pipeline, config.parallelism))
    for part in parts.values():
        _wrap(part, config, world, devices)
    return Pipeline(parts, config, mesh, devices)


def _wrap(model: Model, config: TrainConfig, world: World, devices: DeviceMesh) -> nn.Module:
    # Tensor parallelism first: it cuts the layers themselves, the rest then works with what is left of them.
    if config.parallelism.tensor_parallel > 1:
        split_layers(model, devices["tensor"])
    # Inside the compiled function, so that the compiler sees what is kept and what is computed again.
    checkpoint_activations(model, config.training.activation_checkpointing)
    # Before the wrappers, whose hooks then stay outside the compiled functions.
    if config.training.compile:
        compile_blocks(model, world.device)
    # Data parallelism comes last: it wraps, gathers or reduces what the other steps made of the model.
    return DATA_PARALLEL[config.parallelism.strategy](model, config, world, devices)


def _require_possible(config: TrainConfig) -> None:
    layout = config.parallelism
    head_is_cut = layout.tensor_parallel * layout.pipeline_parallel > 1 or layout.strategy == "dp"
    if config.model.loss_chunks > 1 and head_is_cut:
        raise ConfigurationError(
            f"model.lossChunks: {config.model.loss_chunks} needs the whole head on each rank: set it to 1, or leave "
            f"out tensorParallel, pipelineParallel and strategy dp"
        )
    if config.optimizer.name == "muon" and (layout.tensor_parallel > 1 or layout.strategy == "zero"):
        raise ConfigurationError(
            "optimizer.name: 'muon' works on whole matrices, or on those that fsdp and hsdp shard: use 'adamw', or "
            "leave out tensorParallel and strategy zero"
        )
    if layout.tensor_parallel > 1:
        require_divisible(config)
    if layout.pipeline_parallel > 1:
        require_stages(config)
    if layout.context_parallel > 1:
        require_slices(config)


def parallelize_again(model: nn.Module, config: TrainConfig, world: World) -> nn.Module:
    """Wrap a replicated model, whose old world is gone, for a new one; parameters and compiled functions stay."""
    bare = model.module if isinstance(model, DistributedDataParallel) else model
    for parameter in bare.parameters():
        parameter.grad = None  # a view of the old wrapper's buckets
    devices = arrange(config.parallelism, world).connect(world.device.type)
    return replicate_as_it_is(bare, config, devices)


def parallelize_optimizer(optimizer: torch.optim.Optimizer, config: TrainConfig) -> torch.optim.Optimizer:
    """Share out the state of an optimizer over the ranks where the model's own layout does not do so."""
    return share_out(optimizer) if config.parallelism.strategy == "zero" else optimizer


def reduce_gradients(model: nn.Module, enabled: bool) -> None:
    """Whether the next backward pass reduces gradients, or only accumulates them on each rank.

    Where parameters are sharded, gradients are reduced to shards all the same: whole ones would not fit. Then it is the
    sum over the replicas that waits.
    """
    match model:
        case ReplicateModule():
            model.set_requires_gradient_sync(enabled)
        case FSDPModule():
            model.set_requires_all_reduce(enabled)
        case DistributedDataParallel():
            model.require_backward_grad_sync = enabled  # as its `no_sync` does, but without a frame that holds it


def reshard(model: nn.Module) -> None:
    """Give back what forward passes have gathered, where no backward pass does so."""
    if isinstance(model, FSDPModule):
        model.reshard()


def forward_precision(model: nn.Module, config: TrainConfig, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass: autocast for bf16, unless the sharding casts by itself."""
    if config.training.precision == "bf16" and not isinstance(model, FSDPModule):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
