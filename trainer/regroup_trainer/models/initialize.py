"""Initial values of parameters: a function of (seed, name), the same for every world size and
sharding.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


class Initializable(Protocol):
    """A model that knows the initial value of each of its parameters."""

    def initial_value(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """The initial value of a whole (unsharded) parameter, on the CPU."""


def generator_for(name: str, seed: int) -> torch.Generator:
    """A CPU generator keyed by seed and name."""
    key = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(key, "little", signed=True))


@torch.no_grad()
def initialize(model: nn.Module, source: Initializable, seed: int) -> None:
    """Fill the allocated parameters, one at a time: a rank never holds more than one whole
    parameter.
    """
    for name, parameter in model.named_parameters():
        value = source.initial_value(name, parameter.shape, generator_for(name, seed))
        if isinstance(parameter, DTensor):
            # Without a source rank: every rank made the same value and keeps its own shard, without
            # communication.
            value = distribute_tensor(
                value.to(parameter.device),
                parameter.device_mesh,
                parameter.placements,
                src_data_rank=None,
            )
        parameter.copy_(value)
