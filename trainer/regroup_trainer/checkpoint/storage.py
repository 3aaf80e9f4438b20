"""The part of a training state that torch's distributed checkpoint (DCP) reads and writes.

Names are those of the unwrapped model for every strategy, and tensors are described by their place in the whole, so
that any world and strategy can load what any other has saved.
"""

from __future__ import annotations

from typing import Any

from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from regroup_trainer.state import TrainState


def tensors_of(state: TrainState) -> dict[str, Any]:
    """Views of parameters and optimizer state, keyed as stored."""
    model, optimizer = get_state_dict(state.bare_model, state.own_optimizer)
    return {"model": model, "optimizer": optimizer}


def put_back(state: TrainState, tensors: dict[str, Any]) -> None:
    """The inverse of `tensors_of`, after they have been loaded in place."""
    set_state_dict(
        state.bare_model,
        state.own_optimizer,
        model_state_dict=tensors["model"],
        optim_state_dict=tensors["optimizer"],
    )
