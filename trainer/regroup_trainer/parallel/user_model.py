"""Distributes a user's model over the ranks. Gradients are summed, never averaged: see
`parallelize`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from regroup_trainer.parallel.gradient_sum import SummedDDP
from regroup_trainer.parallel.mesh import arrange
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import ParallelismConfig

UserStrategy = Literal["ddp", "fsdp"]


class Replicated(nn.Module):
    """The model that a program holds where every rank has a copy. It stays the same object when
    process group and wrapper change.
    """

    def __init__(self, module: nn.Module, options: dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._options = {"gradient_as_bucket_view": True, **options}
        self._wrapped = [module]  # in a list, so that its parameters are not counted twice

    @property
    def wrapped(self) -> nn.Module:
        """The model in its present wrapper."""
        return self._wrapped[0]

    def wrap(self, group: GenerationGroup, **options: Any) -> None:
        """Wrap the model for this process group, which must be the only one. A single rank trains
        the bare model.
        """
        self._wrapped[0] = self.module
        if group.size > 1:
            self._wrapped[0] = SummedDDP(
                self.module, ParallelismConfig(), **{**self._options, **options}
            )

    def unwrap(self) -> None:
        """Let go of the wrapper of a process group that is gone."""
        self._wrapped[0] = self.module
        for parameter in self.module.parameters():
            parameter.grad = None  # a view of its buckets

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within this context, a forward pass does not communicate."""
        wrapped, self._wrapped[0] = self._wrapped[0], self.module
        try:
            yield
        finally:
            self._wrapped[0] = wrapped

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the model's own forward pass."""
        return self.wrapped(*args, **kwargs)


def distribute(
    model: nn.Module, strategy: UserStrategy, group: GenerationGroup, options: dict[str, Any]
) -> nn.Module:
    """Replicate or shard a model that is allocated and initialised. Once wrapped, all ranks have
    rank 0's values.

    `options` go to DistributedDataParallel or fully_shard.
    """
    model.to(group.device)
    if strategy == "fsdp":
        return _shard(model, group, options)
    return Replicated(model, options)


@torch.no_grad()
def _shard(model: nn.Module, group: GenerationGroup, options: dict[str, Any]) -> nn.Module:
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor, src=0)
    mesh = arrange(ParallelismConfig(strategy="fsdp"), group).connect(group.device.type)["shard"]
    # The blocks of a stack are gathered one at a time; the root gathers the rest.
    blocks = [
        block for stack in model.modules() if isinstance(stack, nn.ModuleList) for block in stack
    ]
    for module in [*blocks, model]:
        sharded: FSDPModule = fully_shard(module, mesh=mesh, **options)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo has no pre-multiplied sum
    return model


def identity(model: nn.Module) -> dict[str, Any]:
    """What must be equal for a checkpoint to fit: names and shapes of the parameters, without the
    wrapper's prefix.
    """
    bare = model.module if isinstance(model, Replicated) else model
    shapes = {name: list(parameter.shape) for name, parameter in bare.named_parameters()}
    digest = hashlib.blake2b(json.dumps(shapes, sort_keys=True).encode(), digest_size=8).hexdigest()
    count = sum(math.prod(shape) for shape in shapes.values())
    return {"name": type(bare).__name__.removeprefix("FSDP"), "parameters": count, "shapes": digest}
