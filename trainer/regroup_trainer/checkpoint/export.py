"""Exports the model of a checkpoint as safetensors in Hugging Face's layout.

Llama gets the names and the config.json of transformers' LlamaForCausalLM, which can load the
folder. Other models keep their own names.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from regroup_trainer.checkpoint.initialize_from import stored_name
from regroup_trainer.checkpoint.layout import Manifest
from regroup_trainer.checkpoint.load import CheckpointReader, read
from regroup_trainer.checkpoint.safetensors_folder import CONFIG, INDEX, WEIGHTS
from regroup_trainer.errors import CheckpointError
from regroup_trainer.models.hugging_face_config import exported_config, own_type
from regroup_trainer.system import durable

SHARD_BYTES = 5 * 10**9
"""The most bytes of a file; a larger model is split over several files, as Hugging Face does."""
STREAM_PART_BYTES = 2**28
"""How much of a model `write_stream` has in memory at once, or its largest tensor."""
_MODEL = "model."
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""As safetensors names them."""


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


def write_stream(
    checkpoint: Path, manifest: Manifest, out: BinaryIO, part_bytes: int = STREAM_PART_BYTES
) -> str:
    """Write the weights to `out` as one file of safetensors, a part of them in memory at a time.
    Returns the BLAKE2b checksum of what was written, in hexadecimal digits.

    Raises OSError, and CheckpointError for what is no checkpoint or no file of safetensors holds.
    """
    described = _described(checkpoint)
    model = manifest.model.get("name", "")
    header = json.dumps(_header(model, described)).encode()
    header += b" " * (-len(header) % 8)
    head = len(header).to_bytes(8, "little") + header
    checksum = hashlib.blake2b(head)
    out.write(head)
    for names in _parts(described, part_bytes):
        tensors = {name: _empty(described[name]) for name in names}
        read(dict(tensors), checkpoint)
        for tensor in tensors.values():
            content = tensor.reshape(-1).view(torch.uint8).numpy().data
            checksum.update(content)
            out.write(content)
    out.flush()
    return checksum.hexdigest()


def _header(model: str, described: Mapping[str, TensorStorageMetadata]) -> dict[str, Any]:
    """What stands before the tensors: the type, the shape and the place of each."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, what in described.items():
        own, dtype = name.removeprefix(_MODEL), what.properties.dtype
        if dtype not in _DTYPES:
            raise CheckpointError(f"{own}: {dtype} cannot be written as safetensors")
        begin, end = end, end + _size(what)
        header[stored_name(model, own)] = {
            "dtype": _DTYPES[dtype],
            "shape": list(what.size),
            "data_offsets": [begin, end],
        }
    return header


def _parts(described: Mapping[str, TensorStorageMetadata], part_bytes: int) -> Iterator[list[str]]:
    """Names of tensors that are read together, in order."""
    part: list[str] = []
    room = part_bytes
    for name, what in described.items():
        if part and _size(what) > room:
            yield part
            part, room = [], part_bytes
        part.append(name)
        room -= _size(what)
    yield part


def read_model(checkpoint: Path) -> dict[str, Tensor]:
    """The whole tensors of the model, on the CPU. Raises CheckpointError."""
    tensors = {name: _empty(what) for name, what in _described(checkpoint).items()}
    read(dict(tensors), checkpoint)
    return {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items()}


def _described(checkpoint: Path) -> dict[str, TensorStorageMetadata]:
    """The tensors of the model, by their names in the checkpoint."""
    return {
        name: what
        for name, what in CheckpointReader(checkpoint).read_metadata().state_dict_metadata.items()
        if name.startswith(_MODEL) and isinstance(what, TensorStorageMetadata)
    }


def _empty(what: TensorStorageMetadata) -> Tensor:
    return torch.empty(what.size, dtype=what.properties.dtype)


def _size(what: TensorStorageMetadata) -> int:
    return math.prod(what.size) * what.properties.dtype.itemsize


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
