"""Exports the model of a checkpoint as safetensors in Hugging Face's layout.

Llama gets the names and the config.json of transformers' LlamaForCausalLM, which can load the
folder. Other models keep their own names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from regroup_trainer.checkpoint.initialize_from import stored_name
from regroup_trainer.checkpoint.layout import Manifest
from regroup_trainer.checkpoint.load import CheckpointReader, read
from regroup_trainer.checkpoint.safetensors_folder import CONFIG, INDEX, WEIGHTS
from regroup_trainer.models.hugging_face_config import exported_config, own_type
from regroup_trainer.system import durable

SHARD_BYTES = 5 * 10**9
"""The most bytes of a file; a larger model is split over several files, as Hugging Face does."""
_MODEL = "model."


def export(
    checkpoint: Path, manifest: Manifest, target: Path, shard_bytes: int = SHARD_BYTES
) -> list[Path]:
    """Write config.json and the weights into the new folder `target`; returns the files.

    The whole model is read into memory. Raises OSError, and CheckpointError for a checkpoint whose
    description is none.
    """
    weights = {
        stored_name(manifest.model.get("name", ""), name): tensor
        for name, tensor in read_model(checkpoint).items()
    }
    shards = _split(weights, shard_bytes)
    target.mkdir(parents=True, exist_ok=True)
    names = _shard_names(len(shards))
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, target / name, metadata={"format": "pt"})
    written = [*names, CONFIG]
    (target / CONFIG).write_text(json.dumps(_config(manifest, weights), indent=2) + "\n")
    if len(shards) > 1:
        places = {
            weight: name for name, shard in zip(names, shards, strict=True) for weight in shard
        }
        total = sum(tensor.nbytes for tensor in weights.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (target / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        written.append(INDEX)
    for name in written:
        durable.sync(target / name)
    return [target / name for name in written]


def read_model(checkpoint: Path) -> dict[str, Tensor]:
    """The whole tensors of the model, on the CPU. Raises CheckpointError."""
    described = CheckpointReader(checkpoint).read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(what.size, dtype=what.properties.dtype)
        for name, what in described.items()
        if name.startswith(_MODEL) and isinstance(what, TensorStorageMetadata)
    }
    read(dict(tensors), checkpoint)
    return {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items()}


def _split(weights: Mapping[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    room = shard_bytes
    for name, tensor in weights.items():
        if tensor.nbytes > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    return shards


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return [WEIGHTS]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _config(manifest: Manifest, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    name = manifest.model.get("name", "model")
    if name != "llama":
        return {"model_type": own_type(name), **manifest.model}
    embedding = weights["model.embed_tokens.weight"]
    return exported_config(
        manifest.dimensions,
        vocabulary=embedding.shape[0],
        sequence_length=manifest.data.sequence_length,
        dtype=str(embedding.dtype).removeprefix("torch."),
    )
