"""ZeRO stage 1: every rank holds the whole model, but updates only a part of it and keeps the
optimizer state of that part only.

Each parameter has one owner, which updates it and broadcasts the result. Checkpoints store each
owner's state. No rank ever holds the state of all, and no collective is needed (torch's
`consolidate_state_dict` gathers everything on one rank).
"""

from __future__ import annotations

import inspect

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer


def shard_optimizer(optimizer: torch.optim.Optimizer) -> ZeroRedundancyOptimizer:
    """The same optimizer, with its state sharded over all ranks."""
    kind = type(optimizer)
    accepted = inspect.signature(kind).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return ZeroRedundancyOptimizer(optimizer.param_groups, optimizer_class=kind, **defaults)


def own_part(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that holds this rank's state: the inner one where the state is sharded."""
    return optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
