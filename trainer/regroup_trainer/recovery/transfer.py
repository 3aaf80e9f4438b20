"""Moves a state to another rank over the process group, or to another mesh of the same shards in
the same process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor
from torch.distributed.tensor import DTensor

from regroup_trainer.checkpoint.storage import put_back, tensors_of
from regroup_trainer.step.gradients import local
from regroup_trainer.step.state import Position, TrainState
from regroup_trainer.system.background import note_progress

_PIECE_BYTES = 64 << 20
_CPU = torch.device("cpu")


def send(state: TrainState, beside: object, destination: int) -> None:
    """Send `state`, and `beside`, to a rank that calls `receive`. Raises c10d's errors when it is
    lost.
    """
    content = tensors_of(state)
    digest = xxhash.xxh3_64()
    dist.send_object_list([_without_tensors(content), state.position], dst=destination, device=_CPU)
    for tensor in _tensors(content):
        for piece in _pieces(tensor.cpu()):
            digest.update(piece.numpy().data)
            dist.send(piece, dst=destination)
            note_progress()
    dist.send_object_list([digest.intdigest(), beside], dst=destination, device=_CPU)


def receive(state: TrainState, source: int) -> tuple[bool, Any]:
    """Fill `state` with that of a rank that calls `send`.

    Returns whether the state arrived as it was sent, and what was sent beside it. Raises c10d's
    errors when the source is lost.
    """
    content = tensors_of(state)
    digest = xxhash.xxh3_64()
    box: list[Any] = [None, None]
    dist.recv_object_list(box, src=source, device=_CPU)
    for tensor in _tensors(content):
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        for piece in _pieces(copy):
            dist.recv(piece, src=source)
            digest.update(piece.numpy().data)
            note_progress()
        tensor.copy_(copy)
    last: list[Any] = [None, None]
    dist.recv_object_list(last, src=source, device=_CPU)
    expected, beside = last
    others, position = box
    assert isinstance(position, Position)
    put_back(state, _merged(content, others))
    state.position = position
    return expected == digest.intdigest(), beside


@torch.no_grad()
def transplant(old: TrainState, new: TrainState) -> TrainState:
    """Fill `new`, which has the same shards on another mesh, with what this rank holds of `old`.

    Parameters are found through the optimizers. In the model, a forward pass that was interrupted
    may have left gathered parameters in the place of the shards.
    """
    for there, here in zip(new.optimizer.param_groups, old.optimizer.param_groups, strict=True):
        for parameter, source in zip(there["params"], here["params"], strict=True):
            local(parameter).copy_(local(source))
            if values := old.optimizer.state.get(source):
                new.optimizer.state[parameter] = {
                    key: _placed_as(value, parameter) for key, value in values.items()
                }
        there.update({key: value for key, value in here.items() if key != "params"})
    return TrainState(new.model, new.optimizer, old.position, old.extra)


def _placed_as(value: Any, parameter: Tensor) -> Any:
    """An optimizer's value, placed as its parameter if it is a shard."""
    if not isinstance(value, DTensor) or not isinstance(parameter, DTensor):
        return value
    return DTensor.from_local(
        value.to_local(),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _pieces(tensor: Tensor) -> tuple[Tensor, ...]:
    """The bytes of a tensor on the CPU, in pieces; views, if the tensor is contiguous."""
    return torch.split(tensor.detach().contiguous().reshape(-1).view(torch.uint8), _PIECE_BYTES)


def _tensors(content: Any) -> Iterator[Tensor]:
    """This rank's part of every tensor in nested dicts and lists, in an order that is the same on
    all ranks.
    """
    match content:
        case DTensor():
            yield content.to_local().detach()
        case Tensor():
            yield content.detach()
        case dict():
            for key in sorted(content, key=str):
                yield from _tensors(content[key])
        case list() | tuple():
            for value in content:
                yield from _tensors(value)


def _without_tensors(content: Any) -> Any:
    """All but the tensors: numbers, hyperparameters, packed objects."""
    match content:
        case Tensor():
            return None
        case dict():
            return {key: _without_tensors(value) for key, value in content.items()}
        case list() | tuple():
            return type(content)(_without_tensors(value) for value in content)
    return content


def _merged(content: Any, others: Any) -> Any:
    """This rank's tensors, with the other values as they were sent."""
    match content:
        case Tensor():
            return content
        case dict():
            return {
                key: _merged(content[key], value) if key in content else value
                for key, value in others.items()
            }
        case list() | tuple():
            return type(others)(
                _merged(mine, value) for mine, value in zip(content, others, strict=True)
            )
    return others
