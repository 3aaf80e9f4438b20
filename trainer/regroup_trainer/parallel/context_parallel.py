"""Context parallelism: each rank of the `context` dimension holds a slice of every sequence.

All layers except attention work position by position. For attention, the keys and values of all
slices are gathered, and each rank's queries see those up to their own position (as in Llama 3,
Grattafiori et al., 2024, section 3.3.2). torch's own `context_parallel` replaces the attention
kernel of the whole process, is experimental, and has kernels for CUDA only. This works on every
device, but the last slice has the most work.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.models import Model
from regroup_trainer.models.decoder import Decoder
from regroup_trainer.parallel.mesh import Mesh
from regroup_trainer.protocol.config import TrainConfig

_SEQUENCE = 2
"""The dimension of keys and values [B, H, T, D] that is sliced."""


@dataclass(frozen=True)
class GatheredAttention:
    """Causal attention of a slice of each sequence to the slices before it and to itself."""

    mesh: DeviceMesh
    """One-dimensional: the ranks that hold the slices, in their order."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Slices of queries [B, H, T / ranks, D], keys and values -> the queries' slice of the
        result.
        """
        queries = query.shape[_SEQUENCE]
        seen = (self.mesh.get_local_rank() + 1) * queries
        keys, values = (
            self._gathered(slices).narrow(_SEQUENCE, 0, seen) for slices in (key, value)
        )
        mask = torch.ones(queries, seen, dtype=torch.bool, device=query.device).tril(seen - queries)
        grouped = key.shape[1] != query.shape[1]
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, enable_gqa=grouped
        )

    def _gathered(self, slices: Tensor) -> Tensor:
        whole = DTensor.from_local(slices, self.mesh, [Shard(_SEQUENCE)], run_check=False)
        # Every rank uses the whole. The gradients of all uses add up, and each rank gets those of
        # its slice.
        return whole.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def require_slices(config: TrainConfig) -> None:
    """Raises ConfigurationError when the model has no sequences, or `contextParallel` does not
    divide them.
    """
    slices = config.parallelism.context_parallel
    if config.model.name == "resnet":
        raise ConfigurationError(
            f"parallelism.contextParallel: {slices} cuts sequences, which model.name "
            f"{config.model.name!r} has not: "
            f"use a transformer, or 1"
        )
    if config.training.sequence_length % slices:
        raise ConfigurationError(
            f"parallelism.contextParallel: {slices} does not divide training.sequenceLength "
            f"{config.training.sequence_length}: choose a divisor of it"
        )


def slice_sequences(model: Model, mesh: DeviceMesh) -> None:
    """Make `model`, or a pipeline's part of it, work on this rank's slice of each sequence."""
    assert isinstance(model, Decoder)
    model.context_rank = mesh.get_local_rank()
    for block in model.blocks:
        attention = block.get_submodule("attention")
        setattr(attention, "attend", GatheredAttention(mesh))  # noqa: B010 - typed as a module


def own_slice(sequence_length: int, mesh: Mesh) -> slice | None:
    """The positions of each sequence that this rank works on; None: all."""
    if mesh.sizes.context == 1:
        return None
    length = sequence_length // mesh.sizes.context
    return slice(mesh.place.context * length, (mesh.place.context + 1) * length)
