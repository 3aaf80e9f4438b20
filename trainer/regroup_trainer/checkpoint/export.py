"""Exports the model of a checkpoint as safetensors in Hugging Face's layout, and initializes a
model from such a folder.

Llama gets the names and the config.json of transformers' LlamaForCausalLM, which can load the
folder. Other models keep their own names.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor, distribute_tensor

from regroup_trainer.checkpoint.layout import Manifest
from regroup_trainer.errors import DataError
from regroup_trainer.models.llama import NORM_EPSILON, feed_forward_width, hugging_face_name
from regroup_trainer.protocol.config import Dimensions
from regroup_trainer.system import durable

SHARD_BYTES = 5 * 10**9
"""The most bytes of a file; a larger model is split over several files, as Hugging Face does."""
_MODEL = "model."


def export(
    checkpoint: Path, manifest: Manifest, target: Path, shard_bytes: int = SHARD_BYTES
) -> list[Path]:
    """Write config.json and the weights into the new folder `target`; returns the files.

    The whole model is read into memory. Raises OSError.
    """
    weights = {
        _exported_name(manifest, name): tensor for name, tensor in read_model(checkpoint).items()
    }
    shards = _split(weights, shard_bytes)
    target.mkdir(parents=True, exist_ok=True)
    names = _shard_names(len(shards))
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, target / name, metadata={"format": "pt"})
    written = [*names, "config.json"]
    (target / "config.json").write_text(json.dumps(_config(manifest, weights), indent=2) + "\n")
    if len(shards) > 1:
        places = {
            weight: name for name, shard in zip(names, shards, strict=True) for weight in shard
        }
        total = sum(tensor.nbytes for tensor in weights.values())
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
        written.append("model.safetensors.index.json")
    for name in written:
        durable.sync(target / name)
    return [target / name for name in written]


@torch.no_grad()
def initialize_from(model: nn.Module, folder: Path, name: str) -> None:
    """Fill the parameters of `model`, of kind `name`, from a folder of safetensors. Each rank reads
    what it needs.

    Raises DataError when a weight is missing or of another shape.
    """
    with ExitStack() as open_files:
        found = dict(_weights(folder, open_files))
        for own, tensor in get_model_state_dict(model).items():
            stored = hugging_face_name(own) if name == "llama" else own
            if stored not in found:
                raise DataError(
                    f"model.initializeFrom: {folder} has no weight {stored}: is it of another "
                    "architecture?"
                )
            _fill(cast(Tensor, tensor), found[stored].get_tensor(stored), f"{stored} in {folder}")


def _fill(tensor: Tensor, value: Tensor, what: str) -> None:
    if value.shape != tensor.shape:
        raise DataError(
            f"model.initializeFrom: {what} has shape {list(value.shape)} instead of "
            f"{list(tensor.shape)}: choose the "
            f"preset or dimensions that it was trained with"
        )
    if isinstance(tensor, DTensor):
        value = distribute_tensor(
            value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None
        )
    tensor.copy_(value)


def _weights(folder: Path, open_files: ExitStack) -> Iterator[tuple[str, Any]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DataError(
            f"model.initializeFrom: {folder} holds no *.safetensors: name a folder in Hugging "
            "Face's layout"
        )
    for path in files:
        try:
            file = open_files.enter_context(safe_open(path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise DataError(
                f"model.initializeFrom: {path} cannot be read ({error}): copy it there again"
            ) from error
        yield from ((key, file) for key in file.keys())  # noqa: SIM118 - no mapping


def read_model(checkpoint: Path) -> dict[str, Tensor]:
    """The whole tensors of the model, on the CPU."""
    reader = FileSystemReader(checkpoint)
    described = reader.read_metadata().state_dict_metadata
    tensors = {
        name: torch.empty(what.size, dtype=what.properties.dtype)
        for name, what in described.items()
        if name.startswith(_MODEL) and isinstance(what, TensorStorageMetadata)
    }
    with warnings.catch_warnings():  # about ranks that do not take part
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        load(dict(tensors), storage_reader=reader, no_dist=True)
    return {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items()}


def _exported_name(manifest: Manifest, name: str) -> str:
    return hugging_face_name(name) if manifest.model.get("name") == "llama" else name


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
        return ["model.safetensors"]
    return [f"model-{number:05}-of-{count:05}.safetensors" for number in range(1, count + 1)]


def _config(manifest: Manifest, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    if manifest.model.get("name") != "llama":
        return {"model_type": f"regroup-{manifest.model.get('name', 'model')}", **manifest.model}
    size = Dimensions.model_validate(
        {key: value for key, value in manifest.model.items() if key != "name"}
    )
    embedding = weights["model.embed_tokens.weight"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": embedding.shape[0],
        "hidden_size": size.width,
        "intermediate_size": feed_forward_width(size),
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.key_value_heads or size.heads,
        "head_dim": size.width // size.heads,
        "hidden_act": "silu",
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": size.rotary_base,
        "max_position_embeddings": manifest.data.sequence_length,
        "tie_word_embeddings": size.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": str(embedding.dtype).removeprefix("torch."),
    }
