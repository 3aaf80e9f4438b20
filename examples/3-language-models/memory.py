"""What a rank keeps in memory between two steps: parameters, gradients and optimizer state,
exactly.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


def megabytes_of_state(model: nn.Module, optimizer: Optimizer) -> float:
    """Of this rank alone: of a sharded tensor its own shard counts."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    held = getattr(
        optimizer, "optim", optimizer
    )  # ZeroRedundancyOptimizer keeps the rank's own part there
    moments = [
        value
        for state in held.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    ]
    return sum(_bytes(tensor) for tensor in [*parameters, *gradients, *moments]) / 1e6


def _bytes(tensor: Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()
