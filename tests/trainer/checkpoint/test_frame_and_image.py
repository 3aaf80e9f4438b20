"""The bytes around a tensor are torch.save's, so that torch's own reader finds it."""

from __future__ import annotations

import io

import pytest
import torch

from regroup_trainer.checkpoint.frame import frame_of
from regroup_trainer.checkpoint.image import Image

TENSORS = [
    torch.arange(6.0).reshape(2, 3),
    torch.tensor(3.5),
    torch.zeros(0, 4),
    torch.ones(70_000, dtype=torch.bfloat16),
    torch.tensor([True, False]),
    torch.arange(5),
]


@pytest.mark.parametrize("tensor", TENSORS, ids=str)
def test_a_frame_around_the_data_is_what_torch_loads(tensor: torch.Tensor) -> None:
    frame = frame_of(tensor.dtype, tensor.shape)
    data = bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
    whole = frame.head + data + frame.tail
    assert len(whole) == frame.length
    loaded = torch.load(io.BytesIO(whole), weights_only=True)
    assert loaded.dtype == tensor.dtype
    assert torch.equal(loaded, tensor)


def test_an_image_holds_each_tensor_where_it_says() -> None:
    image = Image(TENSORS, pinned=False)
    image.warm()
    for value in (1, 0):  # used again by each save
        sources = [tensor * value for tensor in TENSORS]
        for slot, source in zip(image.slots, sources, strict=True):
            slot.copy_(source)
        content = bytes(image.content()[: image.size])
        for span, source in zip(image.spans, sources, strict=True):
            stored = content[span.offset : span.offset + span.length]
            assert torch.equal(torch.load(io.BytesIO(stored), weights_only=True), source)
