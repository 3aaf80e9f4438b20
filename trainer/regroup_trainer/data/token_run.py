"""A run of tokens: several files, or pieces of memory, read as if they were one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from regroup_trainer.data.files import unreadable

Tokens = npt.NDArray[Any]
"""[N] of any unsigned integer type."""
Indices = npt.NDArray[np.int64]

_OPEN_FILES = 128
"""Files that are mapped at a time; a map keeps a file descriptor."""


@dataclass(frozen=True)
class MappedTokens:
    """Tokens in a file, mapped when they are read."""

    path: Path
    dtype: str
    offset: int
    """Bytes before the first token."""
    length: int
    """The number of tokens."""

    def read(self, indices: Indices) -> Tokens:
        """The tokens at these indices, in the shape of the indices. Raises DataError."""
        return _mapped(self)[indices]


@dataclass(frozen=True)
class TokensInMemory:
    """An array of tokens that are read already, or a view of one: reading it never fails."""

    tokens: Tokens

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.tokens)

    def read(self, indices: Indices) -> Tokens:
        """The tokens at these indices, in the shape of the indices."""
        return self.tokens[indices]


TokenPart = MappedTokens | TokensInMemory


class TokenRun:
    """Parts that follow each other."""

    def __init__(self, parts: Sequence[TokenPart]) -> None:
        self._parts = tuple(parts)
        self._ends = np.array(list(accumulate(part.length for part in parts)), dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self._parts else 0

    def windows(self, starts: Indices, length: int) -> Indices:
        """`length` tokens from each of the `starts` [B] on: [B, length]. Raises DataError."""
        if len(self._parts) == 1:  # one gather for the whole batch, without a search
            return self._parts[0].read(starts[:, None] + np.arange(length)).astype(np.int64)
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
            pieces.append(part.read(np.arange(first, first + count)))
            start, length, number = start + count, length - count, number + 1
        return np.concatenate(pieces).astype(np.int64)


@lru_cache(maxsize=_OPEN_FILES)
def _mapped(part: MappedTokens) -> Tokens:
    try:
        return np.memmap(part.path, part.dtype, mode="r", offset=part.offset, shape=(part.length,))
    except OSError as error:
        raise unreadable(error) from error
