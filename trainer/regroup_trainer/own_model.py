"""Shares a user's own model out over the ranks. Gradients are summed, never averaged: see `parallelize`."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer.config import ParallelismConfig
from regroup_trainer.gradient_sum import sum_gradients
from regroup_trainer.mesh import arrange
from regroup_trainer.world import World

OwnStrategy = Literal["ddp", "fsdp"]


def share_out(model: nn.Module, strategy: OwnStrategy, world: World, options: dict[str, Any]) -> nn.Module:
    """Wrap a model that is allocated and initialised; all ranks then have rank 0's values.

    `options` go to DistributedDataParallel or fully_shard. One rank alone keeps the bare model under `ddp`.
    """
    model.to(world.device)
    if strategy == "fsdp":
        return _shard(model, world, options)
    if world.size == 1:
        return model
    ddp = DistributedDataParallel(model, **{"gradient_as_bucket_view": True, **options})
    ddp.register_comm_hook(None, sum_gradients)
    return ddp


@torch.no_grad()
def _shard(model: nn.Module, world: World, options: dict[str, Any]) -> nn.Module:
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor, src=0)
    mesh = arrange(ParallelismConfig(strategy="fsdp"), world).connect(world.device.type)["shard"]
    # The blocks of a stack are gathered one at a time; the root takes the rest.
    blocks = [block for stack in model.modules() if isinstance(stack, nn.ModuleList) for block in stack]
    for module in [*blocks, model]:
        sharded: FSDPModule = fully_shard(module, mesh=mesh, **options)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
    return model


def identity(model: nn.Module) -> dict[str, Any]:
    """What must be equal for a state to fit: the names and shapes of the parameters, the wrapper's prefix left out."""
    bare = model.module if isinstance(model, DistributedDataParallel) else model
    shapes = {name: list(parameter.shape) for name, parameter in bare.named_parameters()}
    digest = hashlib.blake2b(json.dumps(shapes, sort_keys=True).encode(), digest_size=8).hexdigest()
    count = sum(math.prod(shape) for shape in shapes.values())
    return {"name": type(bare).__name__.removeprefix("FSDP"), "parameters": count, "shapes": digest}
