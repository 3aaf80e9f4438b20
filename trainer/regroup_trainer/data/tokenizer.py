"""Vocabularies: bytes, or byte-pair encodings from a package that carries their tables, so that nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, Protocol

import numpy as np

from regroup_trainer.data.run import Tokens
from regroup_trainer.errors import ConfigurationError

BYTE_VALUES = 256
_PIECE = 200_000
"""Characters that the encoder takes at a time, at most."""
_LINE_START = re.compile(r"\n(?=\S)")

BpeName = Literal["cl100k", "o200k"]


class Tokenizer(Protocol):
    """Turns text into numbers."""

    @property
    def name(self) -> str:
        """Names the vocabulary, also in fingerprints."""

    @property
    def classes(self) -> int:
        """Tokens are below this."""

    def document(self, text: str) -> Tokens:
        """A text with what marks its end."""


@dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 as it is. Documents end with a zero, which no text contains."""

    name: str = "byte"
    classes: int = BYTE_VALUES

    def document(self, text: str) -> Tokens:
        """Its bytes, and a zero."""
        return np.frombuffer(text.encode() + b"\0", dtype=np.uint8)


@dataclass(frozen=True)
class BpeTokenizer:
    """A byte-pair encoding as tiktoken defines it, from the package bpe-openai."""

    name: BpeName

    @cached_property
    def _encoding(self) -> Any:
        try:
            package = import_module("bpe_openai")
        except ImportError as error:
            problem = f"data.tokenizer: {self.name!r} needs the package bpe-openai, which this image lacks"
            raise ConfigurationError(f"{problem}: install regroup[data] into it, or use 'byte'") from error
        return package.get_encoding(f"{self.name}_base")

    @property
    def classes(self) -> int:
        """Tokens are below this, the marks of ends included."""
        return int(self._encoding.n_vocab)

    def document(self, text: str) -> Tokens:
        """Its tokens, and the mark of a text's end. What looks like a mark within the text is text."""
        encoded = [token for piece in pieces(text) for token in self._encoding.encode_ordinary(piece)]
        return np.array([*encoded, self._encoding.eot_token], dtype=np.uint32)


def pieces(text: str) -> Iterator[str]:
    """Cut a long text where lines begin; no token spans such a place, so the tokens are those of the whole text.

    (No alternative of the pattern of either vocabulary goes on after a line break with what is not white space.)
    """
    start = 0
    while len(text) - start > _PIECE:
        cuts = [found.end() for found in _LINE_START.finditer(text, start, start + _PIECE)]
        end = cuts[-1] if cuts else start + _PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def tokenizer_of(name: Literal["byte"] | BpeName) -> Tokenizer:
    """The tokenizer of that name."""
    return ByteTokenizer() if name == "byte" else BpeTokenizer(name)
