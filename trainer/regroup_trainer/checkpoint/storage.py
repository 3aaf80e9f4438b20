"""The part of a training state that torch's distributed checkpoint (DCP) reads and writes.

Names are those of the unwrapped model for every strategy, and tensors are described by their place in the whole, so
that any world and strategy can load what any other has saved.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from regroup_trainer.state import TrainState


def tensors_of(state: TrainState) -> dict[str, Any]:
    """Views of parameters and optimizer state, keyed as stored."""
    model, optimizer = get_state_dict(state.bare_model, state.own_optimizer)
    extra = {"extra": _pack(state)} if state.extra else {}
    return {"model": model, "optimizer": optimizer, **extra}


def put_back(state: TrainState, tensors: dict[str, Any]) -> None:
    """The inverse of `tensors_of`, after they have been loaded in place."""
    set_state_dict(
        state.bare_model,
        state.own_optimizer,
        model_state_dict=tensors["model"],
        optim_state_dict=tensors["optimizer"],
    )
    _unpack(state, tensors.get("extra", {}))


def _pack(state: TrainState) -> dict[str, bytes]:
    """The other objects of a state, as one value each: their structure may change from save to save."""
    packed = {}
    for name, stateful in state.extra.items():
        buffer = io.BytesIO()
        torch.save(stateful.state_dict(), buffer)
        packed[name] = buffer.getvalue()
    return packed


def _unpack(state: TrainState, packed: dict[str, bytes]) -> None:
    for name, stateful in state.extra.items():
        # Written by this run itself; a scheduler's state need not consist of tensors.
        stateful.load_state_dict(torch.load(io.BytesIO(packed[name]), weights_only=False))
