"""From a model on the meta device to one that is allocated, initialised and shared out over the ranks.

Every strategy sums gradients over the ranks and never averages them: the loss is scaled beforehand by a constant, which
keeps the mathematics independent of the world size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_module
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer.activation_checkpointing import checkpoint_activations
from regroup_trainer.compilation import compile_blocks
from regroup_trainer.config import TrainConfig
from regroup_trainer.context_parallel import require_slices, slice_sequences
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.gradient_sum import sum_gradients
from regroup_trainer.initialize import initialize
from regroup_trainer.mesh import arrange
from regroup_trainer.models import Model
from regroup_trainer.pipeline import Pipeline, cut, require_stages, stages_of
from regroup_trainer.tensor_parallel import require_divisible, split_layers
from regroup_trainer.world import World


def parallelize(model: Model, config: TrainConfig, world: World) -> nn.Module:
    """Share out `model`, which is on the meta device, as configured. Raises ConfigurationError."""
    _require_possible(config)
    mesh = arrange(config.parallelism, world)
    devices = mesh.connect(world.device.type)
    if world.leads:
        print(mesh.describe(), file=sys.stderr, flush=True)
    if mesh.sizes.context > 1:
        slice_sequences(model, mesh.connect_context(world.device.type))
    if mesh.sizes.pipeline == 1:
        return _share_out(model, config, world, devices)
    # The stack is cut first; all else is then done to each part of it.
    parts = cut(model, stages_of(mesh.place.pipeline, config.parallelism))
    for part in parts.values():
        _share_out(part, config, world, devices)
    return Pipeline(parts, config, mesh, devices)


def _share_out(model: Model, config: TrainConfig, world: World, devices: DeviceMesh) -> nn.Module:
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
    parallelism = config.parallelism
    if parallelism.model_is_cut and parallelism.strategy in ("zero", "dp"):
        raise ConfigurationError(
            f"parallelism.strategy: {parallelism.strategy!r} cannot be combined with {parallelism.replica_group}: use "
            f"ddp, fsdp or hsdp"
        )
    if parallelism.tensor_parallel > 1:
        require_divisible(config)
    if parallelism.pipeline_parallel > 1:
        require_stages(config)
    if parallelism.context_parallel > 1:
        require_slices(config)


def replicate(model: Model, config: TrainConfig, world: World, devices: DeviceMesh) -> nn.Module:
    """DDP: every rank holds the whole model, or the same part of it."""
    if config.parallelism.model_is_cut:
        return _replicate_parts(model, config, world, devices["replicate"])
    model.to_empty(device=world.device)
    initialize(model, model, config.training.seed)
    ddp = DistributedDataParallel(
        model,
        device_mesh=devices["replicate"],
        init_sync=False,  # every rank made the same values, or loads the same checkpoint
        gradient_as_bucket_view=True,
    )
    ddp.register_comm_hook(None, sum_gradients)
    return ddp


def shard(model: Model, config: TrainConfig, world: World, devices: DeviceMesh) -> nn.Module:
    """FSDP2: parameters, gradients and optimizer state are sharded over the ranks of `shard`, copied along others."""
    mesh = devices["replicate", "shard"] if config.parallelism.strategy == "hsdp" else devices["shard"]
    return _by_blocks(model, config, world, partial(fully_shard, mesh=mesh))


def _replicate_parts(model: Model, config: TrainConfig, world: World, mesh: DeviceMesh) -> nn.Module:
    """DDP's semantics by FSDP2's machinery, since DDP itself knows neither DTensors nor a pipeline's schedule."""
    return _by_blocks(model, config, world, partial(replicate_module, mesh=mesh))


def _by_blocks(model: Model, config: TrainConfig, world: World, wrap: Callable[..., FSDPModule]) -> nn.Module:
    policy = _mixed_precision(config)
    # Blocks get what the root has cast already, and rotary angles that must stay in float32.
    inner = dataclasses.replace(policy, cast_forward_inputs=False)
    # Blocks first, so that they are gathered one at a time; the root takes the rest. The embedding serves at both ends
    # of the model and therefore belongs to the root.
    for block in model.blocks:
        _shard_by_sum(wrap(block, mp_policy=inner))
    _shard_by_sum(wrap(model, mp_policy=policy))
    model.to_empty(device=world.device)
    initialize(model, model, config.training.seed)
    return model


DATA_PARALLEL: dict[str, Callable[[Model, TrainConfig, World, DeviceMesh], nn.Module]] = {
    "ddp": replicate,
    "fsdp": shard,
    "hsdp": shard,
}
"""parallelism.strategy -> how to wrap the model."""


@contextlib.contextmanager
def gradient_reduction(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Reduce gradients in the backward pass inside, or only accumulate them on each rank."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
        yield
    elif isinstance(model, DistributedDataParallel) and not enabled:
        with model.no_sync():
            yield
    else:
        yield


def forward_precision(model: nn.Module, config: TrainConfig, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass: autocast for bf16, unless the sharding casts by itself."""
    if config.training.precision == "bf16" and not isinstance(model, FSDPModule):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def _mixed_precision(config: TrainConfig) -> MixedPrecisionPolicy:
    if config.training.precision == "bf16":
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return MixedPrecisionPolicy()


def _shard_by_sum(module: FSDPModule) -> None:
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
