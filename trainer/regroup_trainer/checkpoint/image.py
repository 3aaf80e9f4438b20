"""The rank's shard file as an image in memory: a save fills in the data and writes the whole."""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regroup_trainer.checkpoint.frame import Frame, frame_of

_ALIGNMENT = 64
"""Of tensors in the file, and so of their data in memory."""


@dataclass(frozen=True)
class ImageSpan:
    """The place of a tensor in the file."""

    offset: int
    length: int


class Image:
    """Memory for tensors of given types and shapes, allocated once and used again by each save.

    It begins and ends at page boundaries, so that it can be written past the page cache. With
    `pinned`, a GPU copies into it while it computes. `allocate` returns memory of so many bytes.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        pinned: bool,
        allocate: Callable[[int], mmap.mmap] | None = None,
    ) -> None:
        frames = [frame_of(tensor.dtype, tensor.shape) for tensor in tensors]
        self.spans = lay_out(tensors)
        self.size = size_of(self.spans)
        self._memory = (allocate or _private)(allocated(self.size))
        self._bytes = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._pinned = pinned
        self.slots = [
            self._slot(tensor, frame, span)
            for tensor, frame, span in zip(tensors, frames, self.spans, strict=True)
        ]
        self._frames = frames

    def warm(self) -> None:
        """Touch all pages and write the parts that never change. Takes a second per few GiB."""
        self._bytes[:: mmap.PAGESIZE] = 0
        if self._pinned:
            _pin(self, self._bytes)
        for frame, span in zip(self._frames, self.spans, strict=True):
            tail = span.offset + span.length - len(frame.tail)
            self._memory[span.offset : span.offset + len(frame.head)] = frame.head
            self._memory[tail : tail + len(frame.tail)] = frame.tail

    def content(self) -> memoryview:
        """The whole memory: `size` bytes, and the rest of the last page."""
        return memoryview(self._memory)

    def _slot(self, tensor: Tensor, frame: Frame, span: ImageSpan) -> Tensor:
        start = span.offset + len(frame.head)
        return self._bytes[start : start + frame.data_bytes].view(tensor.dtype).view(tensor.shape)


def lay_out(tensors: Sequence[Tensor]) -> tuple[ImageSpan, ...]:
    """The places of tensors of these types and shapes in a file."""
    spans, offset = [], 0
    for tensor in tensors:
        length = frame_of(tensor.dtype, tensor.shape).length
        spans.append(ImageSpan(offset, length))
        offset = _rounded_up(offset + length, _ALIGNMENT)
    return tuple(spans)


def size_of(spans: Sequence[ImageSpan]) -> int:
    """The bytes of a file with these tensors."""
    return spans[-1].offset + spans[-1].length if spans else 0


def allocated(size: int) -> int:
    """The bytes of memory for a file of this size: whole pages, at least one."""
    return _rounded_up(max(1, size), mmap.PAGESIZE)


def _private(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _pin(owner: object, memory: Tensor) -> None:
    """Page-lock memory for CUDA as long as `owner` lives. Raises MemoryError."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    code = int(runtime.cudaHostRegister(memory.data_ptr(), len(memory), 0))
    if code:
        raise MemoryError(
            f"{len(memory)} bytes for checkpoints cannot be pinned (CUDA error {code}): free host "
            "memory"
        )
    weakref.finalize(owner, runtime.cudaHostUnregister, memory.data_ptr())
