"""From a model on the meta device to one that is allocated, initialised and shared out over the ranks.

Every strategy sums gradients over the ranks and never averages them: the loss is scaled beforehand by a constant, which
keeps the mathematics independent of the world size.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer.activation_checkpointing import checkpoint_activations
from regroup_trainer.compilation import compile_blocks
from regroup_trainer.config import TrainConfig
from regroup_trainer.data_parallel import DATA_PARALLEL
from regroup_trainer.determinism import require_determinism
from regroup_trainer.mesh import arrange
from regroup_trainer.models import Model
from regroup_trainer.world import World
from regroup_trainer.zero import share_out


def parallelize(model: Model, config: TrainConfig, world: World) -> nn.Module:
    """Share out `model`, which is on the meta device, as configured. Raises ConfigurationError."""
    if config.training.deterministic == "exact":
        require_determinism()
    mesh = arrange(config.parallelism, world)
    devices = mesh.connect(world.device.type)
    if world.leads and len(mesh.named) > 1:
        print(mesh.describe(), file=sys.stderr, flush=True)
    # Inside the compiled function, so that the compiler sees what is kept and what is computed again.
    checkpoint_activations(model, config.training.activation_checkpointing)
    # Before the wrappers, whose hooks then stay outside the compiled functions.
    if config.training.compile:
        compile_blocks(model, world.device)
    # Data parallelism comes last: it wraps, gathers or reduces what the other steps made of the model.
    return DATA_PARALLEL[config.parallelism.strategy](model, config, world, devices)


def parallelize_optimizer(optimizer: torch.optim.Optimizer, config: TrainConfig) -> torch.optim.Optimizer:
    """Share out the state of an optimizer over the ranks where the model's own layout does not do so."""
    return share_out(optimizer) if config.parallelism.strategy == "zero" else optimizer


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
