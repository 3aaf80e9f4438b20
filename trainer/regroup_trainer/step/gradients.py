"""The gradients that a rank holds: its parts, their norm, and who else holds the same."""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from regroup_trainer.parallel.mesh import Mesh
from regroup_trainer.parallel.pipeline import Pipeline


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds: its shard of a DTensor, all of any other."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()  # else autograd would record each `to_local`
def local_gradients(parameters: list[nn.Parameter]) -> list[Tensor]:
    """This rank's parts of the gradients, without parameters that have none."""
    return [local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def sum_of_squares(tensors: list[Tensor]) -> float | Tensor:
    """The sum of squares over all elements, in double precision across tensors.

    All tensors are on one device. On a GPU the result is a tensor there: the host does not wait.
    """
    if tensors[0].device.type != "cpu":
        return torch.stack(torch._foreach_norm(tensors)).double().square().sum()
    flat = (tensor.reshape(-1) for tensor in tensors)
    return sum(float(one.dot(one)) for one in flat)  # one `dot` each: the quickest CPU kernel


def parameters_by_holders(model: nn.Module, mesh: Mesh) -> dict[int, list[nn.Parameter]]:
    """The parameters of a model, by the number of ranks that hold the same part of the gradient.

    Call it after a backward pass, when the gradients have their final placement.
    """
    found: dict[int, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        copies = model.copies(name) if isinstance(model, Pipeline) else 1
        tensor = parameter if parameter.grad is None else parameter.grad
        found[copies * _holders(tensor, mesh)].append(parameter)
    return found


def _holders(tensor: Tensor, mesh: Mesh) -> int:
    """The number of ranks of a pipeline stage that hold the same part of a tensor."""
    ranks = math.prod(mesh.sizes) // mesh.sizes.pipeline
    if not isinstance(tensor, DTensor):
        return ranks
    shards = [
        size
        for size, placement in zip(tensor.device_mesh.shape, tensor.placements, strict=True)
        if not placement.is_replicate()
    ]
    return ranks // math.prod(shards)
