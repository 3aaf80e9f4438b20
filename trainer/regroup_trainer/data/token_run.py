"""A run of tokens: several files, or pieces of memory, read as if they were one array.

Files are read, not mapped. Where their volume does not answer in time, a read gives an error, which
may be waited for; access to a map would end the process (SIGBUS).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regroup_trainer.data.files import open_file
from regroup_trainer.errors import DataError

Tokens = npt.NDArray[Any]
"""[N] of any unsigned integer type."""
Indices = npt.NDArray[np.int64]

_OPEN_FILES = 128
"""Files that are open at a time."""


@dataclass(frozen=True)
class TokensInFile:
    """Tokens in a file, read when they are needed."""

    path: Path
    dtype: str
    offset: int
    """Bytes before the first token."""
    length: int
    """The number of tokens."""
    device: int | None = None
    """Number of the file system on which it must stay; None: any."""

    def read(self, first: int, count: int) -> Tokens:
        """`count` tokens from the one of index `first` on. Raises OSError; DataError where the file
        has become shorter, or something else.
        """
        width = np.dtype(self.dtype).itemsize
        try:
            content = _opened(self.path, self.device).read(
                count * width, self.offset + first * width
            )
        except OSError as error:
            _opened.cache_clear()  # a file handle may be stale for good
            error.filename = error.filename or str(self.path)
            raise
        return np.frombuffer(content, self.dtype)


@dataclass(frozen=True)
class TokensInMemory:
    """An array of tokens that are read already, or a view of one: reading it never fails."""

    tokens: Tokens

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def read(self, first: int, count: int) -> Tokens:
        """`count` tokens from the one of index `first` on."""
        return self.tokens[first : first + count]


TokenPart = TokensInFile | TokensInMemory


class TokenRun:
    """Parts that follow each other."""

    def __init__(self, parts: Sequence[TokenPart]) -> None:
        self._parts = tuple(parts)
        self._ends = np.array(list(accumulate(part.length for part in parts)), dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._parts else 0

    def windows(self, starts: Indices, length: int) -> Indices:
        """`length` tokens from each of the `starts` [B] on: [B, length]. Raises as `read` does."""
        return np.stack([self._window(int(start), length) for start in starts])

    def part_at(self, index: int) -> TokenPart:
        """The part that contains a token."""
        return self._parts[int(np.searchsorted(self._ends, index, side="right"))]

    def _window(self, start: int, length: int) -> Indices:
        pieces = []
        number = int(np.searchsorted(self._ends, start, side="right"))
        while length:
            part = self._parts[number]
            first = start - (int(self._ends[number]) - part.length)
            count = min(length, part.length - first)
            pieces.append(part.read(first, count))
            start, length, number = start + count, length - count, number + 1
        return np.concatenate(pieces).astype(np.int64)


class _OpenFile:
    """A file that is closed when nobody has it any more."""

    def __init__(self, path: Path, device: int | None) -> None:
        self._path = path
        self._stream = open_file(path, device)

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self._stream.close()

    def read(self, size: int, offset: int) -> bytes:
        """Exactly so many bytes. Raises OSError, DataError."""
        descriptor = self._stream.fileno()
        content = os.pread(descriptor, size, offset)
        while len(content) < size:
            more = os.pread(descriptor, size - len(content), offset + len(content))
            if not more:
                problem = f"{self._path} has become shorter than {offset + size} bytes"
                raise DataError(f"data.paths: {problem} since the job began: copy it again")
            content += more
        return content


@lru_cache(maxsize=_OPEN_FILES)
def _opened(path: Path, device: int | None) -> _OpenFile:
    return _OpenFile(path, device)
