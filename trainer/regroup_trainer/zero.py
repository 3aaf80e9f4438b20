"""ZeRO stage 1: every rank holds the whole model but updates, and keeps the optimizer state of, only its own part.

Each parameter has one owner, who updates it and broadcasts the result. Checkpoints take the owners' states as they are:
no rank ever holds the state of all, and no collective is needed (torch's own `consolidate_state_dict` gathers
everything on one rank).
"""

from __future__ import annotations

import inspect

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer


def share_out(optimizer: torch.optim.Optimizer) -> ZeroRedundancyOptimizer:
    """The same update rule with its state shared out over all ranks."""
    kind = type(optimizer)
    accepted = inspect.signature(kind).parameters
    defaults = {name: value for name, value in optimizer.defaults.items() if name in accepted}
    return ZeroRedundancyOptimizer(optimizer.param_groups, optimizer_class=kind, **defaults)


def own_part(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that holds this rank's state: itself, but for one that is shared out."""
    return optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
