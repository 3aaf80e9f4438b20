"""The part of a training state that torch's distributed checkpoint (DCP) reads and writes.

Names are those of the unwrapped model, for every strategy. Tensors are described by their place in
the whole. So any world size and strategy can load what any other has saved. The parameters of an
optimizer's group are not stored: ranks of a pipeline have different ones.
"""

from __future__ import annotations

import io
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

from regroup_trainer.step.plain_values import load_plain, require_plain
from regroup_trainer.step.state import TrainState


def tensors_of(state: TrainState) -> dict[str, Any]:
    """Parameters and optimizer state by their stored names, as views. Before the first update, the
    optimizer state is made with its initial values.
    """
    fresh = not state.own_optimizer.state
    model, optimizer = get_state_dict(state.bare_model, state.own_optimizer)
    if fresh:
        _count_from_zero(state.own_optimizer)
    extra = {"extra": packed_extra(state)} if state.extra else {}
    optimizer = {"state": optimizer["state"], "param_groups": hyperparameters(state)}
    return {"model": model, "optimizer": optimizer, **extra}


def hyperparameters(state: TrainState) -> list[dict[str, Any]]:
    """The present hyperparameters of each group of parameters."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in state.optimizer.param_groups
    ]


def packed_extra(state: TrainState) -> dict[str, bytes]:
    """The other objects of a state, each as one value, because their structure may change between
    saves. Raises ConfigurationError for one that a restore would refuse.
    """
    packed = {}
    for name, stateful in state.extra.items():
        buffer, content = io.BytesIO(), stateful.state_dict()
        require_plain(f"{name}.state_dict()", content)
        torch.save(content, buffer)
        packed[name] = buffer.getvalue()
    return packed


def put_back(state: TrainState, tensors: dict[str, Any]) -> None:
    """Put tensors that were loaded in place back into the state; the inverse of `tensors_of`."""
    own = get_optimizer_state_dict(state.bare_model, state.own_optimizer)
    names = [group["params"] for group in cast(list[dict[str, Any]], own["param_groups"])]
    groups = tensors["optimizer"]["param_groups"]
    optimizer = {
        "state": tensors["optimizer"]["state"],
        "param_groups": [
            {**group, "params": held} for group, held in zip(groups, names, strict=True)
        ],
    }
    set_state_dict(
        state.bare_model,
        state.own_optimizer,
        model_state_dict=tensors["model"],
        optim_state_dict=optimizer,
    )
    _unpack(state, tensors.get("extra", {}))


def updated_tensors(state: TrainState) -> list[Tensor]:
    """This rank's parts of the tensors that only the optimizer changes: parameters and its own
    state.
    """
    states = [value for of_one in state.own_optimizer.state.values() for value in of_one.values()]
    found = [*state.model.parameters(), *(value for value in states if isinstance(value, Tensor))]
    return [
        tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach() for tensor in found
    ]


def _count_from_zero(optimizer: torch.optim.Optimizer) -> None:
    """Reset step counters: torch makes missing state by an update with zero gradients, which counts
    as a step.
    """
    for of_one in optimizer.state.values():
        if isinstance(of_one.get("step"), Tensor):
            of_one["step"].zero_()


def _unpack(state: TrainState, packed: dict[str, bytes]) -> None:
    for name, stateful in state.extra.items():
        stateful.load_state_dict(load_plain(packed[name], f"the state of {name!r}"))
