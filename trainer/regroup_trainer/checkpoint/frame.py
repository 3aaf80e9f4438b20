"""The bytes that torch.save puts around the data of a tensor.

Each tensor of a shard file is what torch.save makes of it, so that torch's own reader loads it. Around the data, which
changes from save to save, stand bytes that depend on type and shape alone: they are made once, and from then on a save
is a copy of the data between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import IO, cast

import torch
from torch.utils.serialization import config

_DATA_NAME = b"/data/0"
"""End of the name of the record with the data in torch.save's archive; alignment follows it, then the data."""


@dataclass(frozen=True)
class Frame:
    """A saved tensor without its data."""

    head: bytes
    data_bytes: int
    tail: bytes

    @property
    def length(self) -> int:
        """Bytes of the whole."""
        return len(self.head) + self.data_bytes + len(self.tail)


@lru_cache(maxsize=4096)
def frame_of(dtype: torch.dtype, shape: torch.Size) -> Frame:
    """The frame of a contiguous tensor. Raises ValueError when this version of torch writes another format."""
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    data_bytes = tensor.numel() * tensor.element_size()
    stream = _Stream()
    # Checksums are ours, in the manifest; torch's reader does not look at those of the archive.
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(tensor, cast(IO[bytes], stream))
    start = stream.data_record(data_bytes)
    head = b"".join(stream.writes[:start])
    if data_bytes == 0:
        return Frame(head, 0, b"".join(stream.writes[start:]))
    return Frame(head, data_bytes, b"".join(stream.writes[start + 1 :]))


class _Stream:
    """Keeps all that is written but for long data, of which it keeps the length."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self._lengths: list[int] = []

    def write(self, content: memoryview) -> int:
        """One write of the archive."""
        self._lengths.append(len(content))
        self.writes.append(bytes(content) if len(content) < 1 << 16 else b"")
        return len(content)

    def flush(self) -> None:
        """Nothing is buffered."""

    def data_record(self, data_bytes: int) -> int:
        """Number of the write that holds the data."""
        named = next((number for number, part in enumerate(self.writes) if part.endswith(_DATA_NAME)), None)
        if named is None or (data_bytes and self._lengths[named + 2] != data_bytes):
            raise ValueError(f"torch {torch.__version__} lays out saved tensors in an unknown way")
        return named + 2
