"""A whole training state, assembled from the parts of all ranks, for any strategy."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from regroup_trainer.checkpoint.storage import tensors_of
from regroup_trainer.step.agreement import all_gather
from regroup_trainer.step.state import TrainState

Tensors = dict[str, torch.Tensor]


def whole_state(state: TrainState) -> dict[str, Any]:
    """{"model": {name: tensor}, "optimizer": {name: {moment: tensor}}}, on all ranks. All ranks
    call it.
    """
    parts = tensors_of(state)
    model = {name: _whole(value) for name, value in parts["model"].items()}
    moments = {
        name: {moment: _whole(value) for moment, value in of_one.items()}
        for name, of_one in parts["optimizer"]["state"].items()
    }
    # A rank may hold some parameters, or the moments of some parameters, alone.
    return {"model": _union(all_gather(model)), "optimizer": _union(all_gather(moments))}


def equal(a: Any, b: Any) -> bool:
    """Whether two trees of tensors are bit-identical."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return bool(torch.equal(a, b)) if isinstance(a, torch.Tensor) else bool(a == b)


def _whole(value: torch.Tensor) -> torch.Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().cpu().clone()


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in reversed(parts) for name, value in part.items()}
