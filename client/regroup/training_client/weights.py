"""Weights as tensors. This module alone of the client imports torch; it is imported late."""

from __future__ import annotations

import torch

from regroup.training_client.weight_stream import Weight, WeightStream, read_weights

StateDict = dict[str, torch.Tensor]
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def state_dict(stream: WeightStream, most_bytes: int) -> StateDict:
    """All tensors of a stream, on the CPU; each is in memory once. Raises TrainingClientError."""
    return {
        weight.name: _tensor(weight, content)
        for weight, content in read_weights(stream, most_bytes)
    }


def _tensor(weight: Weight, content: bytearray) -> torch.Tensor:
    dtype = _DTYPES[weight.dtype]
    if not content:
        return torch.empty(weight.shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(weight.shape)
