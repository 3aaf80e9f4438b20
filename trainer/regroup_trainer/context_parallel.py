"""Context parallelism: each rank of the `context` dimension holds a slice of every sequence.

All layers but attention work position by position. In attention the keys and values of all slices are gathered, and
each rank's queries see those up to their own position (Llama 3, Grattafiori et al., 2024, section 3.3.2, gathers them
too). torch's own `context_parallel` replaces the attention kernel of the whole process, is experimental, and has
kernels for CUDA only; this works on every device, at the price that the last slice has the most to do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from regroup_trainer.config import TrainConfig
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.mesh import Mesh
from regroup_trainer.models import Model
from regroup_trainer.models.decoder import Decoder

_SEQUENCE = 2
"""Dimension of keys and values [B, H, T, D] along which they are cut."""


@dataclass(frozen=True)
class GatheredAttention:
    """Causal attention of a slice of each sequence to the slices before it and to itself."""

    mesh: DeviceMesh
    """One-dimensional: the ranks that hold the slices, in their order."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Slices of queries [B, H, T / ranks, D], keys and values -> the queries' slice of the result."""
        queries = query.shape[_SEQUENCE]
        seen = (self.mesh.get_local_rank() + 1) * queries
        keys, values = (self._gathered(slices).narrow(_SEQUENCE, 0, seen) for slices in (key, value))
        mask = torch.ones(queries, seen, dtype=torch.bool, device=query.device).tril(seen - queries)
        grouped = key.shape[1] != query.shape[1]
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)

    def _gathered(self, slices: Tensor) -> Tensor:
        whole = DTensor.from_local(slices, self.mesh, [Shard(_SEQUENCE)], run_check=False)
        # Every rank has its own use of the whole: the gradients of all uses add up, each rank gets those of its slice.
        return whole.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])


def require_slices(config: TrainConfig) -> None:
    """Raises ConfigurationError when there are no sequences, or they cannot be cut into `contextParallel` slices."""
    slices = config.parallelism.context_parallel
    if config.model.name == "resnet":
        raise ConfigurationError(
            f"parallelism.contextParallel: {slices} cuts sequences, which model.name {config.model.name!r} has not: "
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
        setattr(block.get_submodule("attention"), "attend", GatheredAttention(mesh))  # noqa: B010 - typed as a module


def own_slice(sequence_length: int, mesh: Mesh) -> slice | None:
    """The positions of each sequence that this rank works on; None: all."""
    if mesh.sizes.context == 1:
        return None
    length = sequence_length // mesh.sizes.context
    return slice(mesh.place.context * length, (mesh.place.context + 1) * length)
