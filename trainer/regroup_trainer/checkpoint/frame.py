"""The bytes that torch.save writes around the data of a tensor.

Each tensor in a shard file is what torch.save makes of it, so that torch's own reader loads it. The
bytes around the data depend on type and shape alone. They are made once; from then on a save is a
copy of the data between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import IO, cast

import torch
from torch.utils.serialization import config

_DATA_NAME = b"/data/0"
"""The end of the name of the record that holds the data in torch.save's archive. Padding follows
it, then the data.
"""


@dataclass(frozen=True)
class Frame:
    """A saved tensor without its data."""

    head: bytes
    data_bytes: int
    tail: bytes

    @property
    def length(self) -> int:
        """Bytes of head, data and tail."""
        return len(self.head) + self.data_bytes + len(self.tail)


@lru_cache(maxsize=4096)
def frame_of(dtype: torch.dtype, shape: torch.Size) -> Frame:
    """The frame of a contiguous tensor. Raises ValueError when this version of torch writes another
    format.
    """
    tensor = torch.empty(shape, dtype=dtype, device="cpu")
    data_bytes = tensor.numel() * tensor.element_size()
    stream = _Stream()
    # The manifest has checksums of whole files; torch's reader does not check those of the archive.
    with config.patch("save.compute_crc32", False):  # type: ignore[attr-defined]
        torch.save(tensor, cast(IO[bytes], stream))
    start = stream.data_record(data_bytes)
    head = b"".join(stream.writes[:start])
    if data_bytes == 0:
        return Frame(head, 0, b"".join(stream.writes[start:]))
    return Frame(head, data_bytes, b"".join(stream.writes[start + 1 :]))


class _Stream:
    """A file that keeps what is written to it; of long data it keeps the length only."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self._lengths: list[int] = []

    def write(self, content: memoryview) -> int:
        """Take one write of the archive."""
        self._lengths.append(len(content))
        self.writes.append(bytes(content) if len(content) < 1 << 16 else b"")
        return len(content)

    def flush(self) -> None:
        """Nothing to do."""

    def data_record(self, data_bytes: int) -> int:
        """The number of the write that holds the data."""
        named = next(
            (number for number, part in enumerate(self.writes) if part.endswith(_DATA_NAME)), None
        )
        if named is None or (data_bytes and self._lengths[named + 2] != data_bytes):
            raise ValueError(f"torch {torch.__version__} lays out saved tensors in an unknown way")
        return named + 2
