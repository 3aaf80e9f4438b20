"""Vocabularies: bytes, or byte-pair encodings from a package that contains their tables, so that
nothing is downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Literal, Protocol

import numpy as np

from regroup_trainer.data.token_run import Tokens
from regroup_trainer.errors import ConfigurationError

BYTE_VALUES = 256
_PIECE = 2**20
"""The most characters that are encoded at a time: a list of numbers takes much more memory than the
text.
"""
_END_OF_LINE = re.compile(r"\n(?=[^\S\r\n]*[^\s/])")
"""The last line break before other characters. No alternative of either vocabulary's pattern
continues after a line break, except that of o200k for punctuation, which includes slashes.
"""

BpeName = Literal["cl100k", "o200k"]


@dataclass(frozen=True)
class _Vocabulary:
    classes: int
    end_of_text: int


_VOCABULARIES: dict[str, _Vocabulary] = {
    "cl100k": _Vocabulary(100277, 100257),
    "o200k": _Vocabulary(200019, 199999),
}
"""Imported here, so that a restarted rank, whose tokens exist already, need not load the tables."""


class Tokenizer(Protocol):
    """Turns text into numbers."""

    @property
    def name(self) -> str:
        """Name of the vocabulary, also in fingerprints."""

    @property
    def classes(self) -> int:
        """Tokens are below this."""

    def document(self, text: str) -> Tokens:
        """The tokens of a text and of its end mark."""


@dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 as it is. A zero, which no text contains, ends a document."""

    name: str = "byte"
    classes: int = BYTE_VALUES

    def document(self, text: str) -> Tokens:
        """The bytes of the text, and a zero."""
        return np.frombuffer(text.encode() + b"\0", dtype=np.uint8)


@dataclass(frozen=True)
class BpeTokenizer:
    """A byte-pair encoding as tiktoken defines it, from the package rs-bpe."""

    name: BpeName

    @property
    def classes(self) -> int:
        """Tokens are below this, including the marks: tiktoken's `n_vocab`."""
        return _VOCABULARIES[self.name].classes

    def document(self, text: str) -> Tokens:
        """The tokens of the text, and the end mark. What looks like a mark within the text is
        text.
        """
        encoded = [np.array(self._encode(piece), dtype=np.uint32) for piece in pieces(text)]
        return np.concatenate(
            [*encoded, np.array([_VOCABULARIES[self.name].end_of_text], dtype=np.uint32)]
        )

    @cached_property
    def _encode(self) -> Callable[[str], list[int]]:
        try:
            package = import_module("rs_bpe.bpe").openai
        except ImportError as error:
            problem = (
                f"data.tokenizer: {self.name!r} needs the package rs-bpe, which this image lacks"
            )
            raise ConfigurationError(
                f"{problem}: install Regroup's extra data into it (rs-bpe supports Python 3.11 to "
                "3.13), or use 'byte'"
            ) from error
        encode: Callable[[str], list[int]] = getattr(package, f"{self.name}_base")().encode
        return encode


def pieces(text: str) -> Iterator[str]:
    """Divide a long text after line breaks, which no token crosses, so that the tokens are those of
    the whole text.
    """
    start = 0
    while len(text) - start > _PIECE:
        cuts = [found.end() for found in _END_OF_LINE.finditer(text, start, start + _PIECE)]
        end = cuts[-1] if cuts else start + _PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def tokenizer_of(name: Literal["byte"] | BpeName) -> Tokenizer:
    """Bytes as tokens, or byte-pair encoding with the vocabulary of that name."""
    return ByteTokenizer() if name == "byte" else BpeTokenizer(name)
