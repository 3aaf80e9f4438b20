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

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer.activation_checkpointing import checkpoint_activations
from regroup_trainer.compilation import compile_blocks
from regroup_trainer.config import TrainConfig
from regroup_trainer.gradient_sum import sum_gradients
from regroup_trainer.initialize import initialize
from regroup_trainer.mesh import arrange
from regroup_trainer.models import Model
from regroup_trainer.world import World


def parallelize(model: Model, config: TrainConfig, world: World) -> nn.Module:
    """Share out `model`, which is on the meta device, as configured. Raises ConfigurationError."""
    mesh = arrange(config.parallelism, world)
    devices = mesh.connect(world.device.type)
    if world.leads:
        print(mesh.describe(), file=sys.stderr, flush=True)
    # Inside the compiled function, so that the compiler sees what is kept and what is computed again.
    checkpoint_activations(model, config.training.activation_checkpointing)
    # Before the wrappers, whose hooks then stay outside the compiled functions.
    if config.training.compile:
        compile_blocks(model, world.device)
    # Data parallelism comes last: it wraps, gathers or reduces what the other steps made of the model.
    return DATA_PARALLEL[config.parallelism.strategy](model, config, world, devices)


def replicate(model: Model, config: TrainConfig, world: World, devices: DeviceMesh) -> nn.Module:
    """DDP: every rank holds the whole model."""
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
    policy = _mixed_precision(config)
    # Blocks get what the root has cast already, and rotary angles that must stay in float32.
    inner = dataclasses.replace(policy, cast_forward_inputs=False)
    # Blocks first, so that they are gathered one at a time; the root takes the rest. The embedding serves at both ends
    # of the model and therefore belongs to the root.
    for block in model.blocks:
        _shard_by_sum(fully_shard(block, mesh=mesh, mp_policy=inner))
    _shard_by_sum(fully_shard(model, mesh=mesh, mp_policy=policy))
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
