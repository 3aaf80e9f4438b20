"""Begins a new run with given weights: `model.initializeFrom`.

All ranks compare the whole folder with the whole model before they change a parameter. So they all
refuse it with the same message, also where each has a part of the model. Values that are not finite
are found by the ranks that load them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor

from regroup_trainer import models
from regroup_trainer.checkpoint.safetensors_folder import (
    CONFIG,
    StoredWeight,
    read_headers,
    read_json,
    require_none,
)
from regroup_trainer.errors import ConfigurationError, DataError
from regroup_trainer.models import hugging_face_config
from regroup_trainer.models.llama import hugging_face_name
from regroup_trainer.protocol.config import ModelConfig

_DTYPES = ("F32", "BF16", "F16")
"""What float32, the type of our parameters, holds exactly."""
_FREQUENCIES = re.compile(
    r"model\.(layers\.(?P<layer>[0-9]{1,4})\.self_attn\.)?rotary_emb\.inv_freq"
)
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


@torch.no_grad()
def initialize_from(model: nn.Module, config: ModelConfig, vocabulary: int) -> None:
    """Fill the parameters of `model` from the folder that `config` names. Each rank reads what it
    needs.

    Raises ConfigurationError when config.json describes another model, and DataError when a file
    cannot be read, or a weight is missing, surplus, of another shape or type, or not finite. Raises
    OSError where the volume is away; then it may be called again.
    """
    folder = Path(str(config.initialize_from))
    _require_same_model(folder, config, vocabulary)
    stored = read_headers(folder)
    _require_same_weights(folder, stored, config, vocabulary)

    def place_of(name: str) -> tuple[Path, int]:
        return stored[name].file, stored[name].begin

    own = {
        stored_name(config.name, name): cast(Tensor, tensor)
        for name, tensor in get_model_state_dict(model).items()
    }
    for name in sorted(own, key=place_of):
        value, path = stored[name].read(), stored[name].file
        _require_finite(name, value, path)
        _fill(own[name], value, path)


def stored_name(model: str, name: str) -> str:
    """What a parameter of a model of ours is called in the folder."""
    return hugging_face_name(name) if model == "llama" else name


def _require_same_model(folder: Path, config: ModelConfig, vocabulary: int) -> None:
    found = hugging_face_config.problems(read_json(folder, CONFIG), config, vocabulary)
    if found:
        raise ConfigurationError(f"model.initializeFrom: {folder / CONFIG}: {'; '.join(found)}")


def _require_same_weights(
    folder: Path, stored: Mapping[str, StoredWeight], config: ModelConfig, vocabulary: int
) -> None:
    wanted = {
        stored_name(config.name, name): tuple(tensor.shape)
        for name, tensor in models.build(config, vocabulary).state_dict().items()
    }
    found = {name: stored[name] for name in wanted.keys() & stored.keys()}
    problems = {
        "missing weights": [*(wanted.keys() - stored.keys())],
        "surplus weights": [
            name for name in stored.keys() - wanted.keys() if not _is_derived(name, stored, config)
        ],
        "weights of another shape": [
            f"{name} {list(weight.shape)} instead of {list(wanted[name])}"
            for name, weight in found.items()
            if weight.shape != wanted[name]
        ],
        f"weights of other types than {', '.join(_DTYPES)}": [
            f"{name} {weight.dtype}"
            for name, weight in found.items()
            if weight.dtype not in _DTYPES
        ],
    }
    require_none(folder, problems)


def _is_derived(name: str, stored: Mapping[str, StoredWeight], config: ModelConfig) -> bool:
    """Whether a weight that our model lacks only repeats what it has: frequencies, which older
    releases of transformers stored and newer ones compute, and the head of tied embeddings.
    """
    if config.name != "llama":
        return False
    size = config.size
    if block := _FREQUENCIES.fullmatch(name):
        pairs = size.width // size.heads // 2
        return int(block["layer"] or 0) < size.layers and stored[name].shape == (pairs,)
    return name == _HEAD and _EMBEDDING in stored and _is_equal(stored, _HEAD, _EMBEDDING)


def _is_equal(stored: Mapping[str, StoredWeight], name: str, other: str) -> bool:
    one, two = stored[name], stored[other]
    return (one.dtype, one.shape) == (two.dtype, two.shape) and torch.equal(one.read(), two.read())


def _require_finite(name: str, value: Tensor, path: Path) -> None:
    """One pass over what the rank loads. A single NaN would make every later loss one."""
    wrong = value.numel() - int(torch.isfinite(value).sum())
    if wrong:
        raise DataError(
            f"model.initializeFrom: {path}: {name} has {wrong} of {value.numel()} values that are "
            "NaN or infinite: copy the model there again, or name the folder of another"
        )


def _fill(tensor: Tensor, value: Tensor, path: Path) -> None:
    if value.shape != tensor.shape:
        raise DataError(f"model.initializeFrom: {path} changed while it was read: begin again")
    if isinstance(tensor, DTensor):
        value = distribute_tensor(
            value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None
        )
    tensor.copy_(value)
