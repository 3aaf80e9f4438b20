"""Weights as tensors. This module alone of the client imports torch; it is imported late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regroup.training_client.weight_stream import Weight, WeightStream, read_weights

if TYPE_CHECKING:
    import torch

    StateDict = dict[str, torch.Tensor]

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
"""Name of a type in safetensors -> in torch."""


def state_dict(stream: WeightStream, most_bytes: int) -> StateDict:
    """All tensors of a stream, on the CPU; each is in memory once. Raises TrainingClientError."""
    return {
        weight.name: _tensor(weight, content)
        for weight, content in read_weights(stream, most_bytes)
    }


def _tensor(weight: Weight, content: bytearray) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, _DTYPES[weight.dtype])
    if not content:
        return torch.empty(weight.shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(weight.shape)
