"""Reads TrainingJob files: YAML with the line of every field, for error messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import yaml

from regroup_trainer.protocol.message import shorten
from regroup_trainer.system.bounded_yaml import BoundedLoader, explain

FieldPath = tuple[str | int, ...]
SIZE_LIMIT = 1 << 20
"""Bytes of the largest file that is read."""


class ManifestError(Exception):
    """The file cannot be read as YAML. The text names file and line."""

    def __init__(self, file: Path, message: str, line: int = 0) -> None:
        """`line` is 0 where the whole file is meant."""
        place = f"{click.format_filename(file)}:{line}" if line else click.format_filename(file)
        super().__init__(f"{place}: {message}")
        self.message = message
        self.line = line


@dataclass(frozen=True)
class Document:
    """One document of a file."""

    file: Path
    value: Any
    lines: dict[FieldPath, int] = field(default_factory=dict)
    """Path of a field -> its line, counted from 1."""

    def line_of(self, path: FieldPath) -> int:
        """The line of the field, or of the nearest parent that is present."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    @property
    def name(self) -> str:
        """metadata.name; without it the name of the file."""
        metadata = self.value.get("metadata") if isinstance(self.value, dict) else None
        return (
            str(metadata.get("name") or self.file.stem)
            if isinstance(metadata, dict)
            else self.file.stem
        )


def read_documents(file: Path) -> list[Document]:
    """All non-empty documents of a file. Raises ManifestError when it is not YAML, or stands for
    more than can be checked (`bounded_yaml`), and OSError when it cannot be read.
    """
    return parse_documents(file, read_text(file))


def read_text(file: Path) -> str:
    """The text of a file; `-` is standard input. Raises ManifestError when it is too long or not
    in UTF-8, and OSError when it cannot be read.
    """
    with sys.stdin.buffer if str(file) == "-" else file.open("rb") as stream:
        content = stream.read(SIZE_LIMIT + 1)
    if len(content) > SIZE_LIMIT:
        raise ManifestError(file, f"has more than {SIZE_LIMIT} bytes: give the file of a job")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ManifestError(file, "no text in UTF-8: save the file as UTF-8", line) from None


def parse_documents(file: Path, text: str) -> list[Document]:
    """All non-empty documents of a text. Raises ManifestError, which names the file."""
    try:
        return list(_documents(file, text))
    except yaml.YAMLError as error:
        line, problem = explain(error)
        message = f"cannot be read as YAML: {shorten(problem)}"
        raise ManifestError(file, message, line) from None


def _documents(file: Path, text: str) -> Iterator[Document]:
    loader = BoundedLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None and (value := loader.construct_document(node)) is not None:
                yield Document(file, value, dict(_lines(node, ())))
    finally:
        loader.dispose()


def _lines(node: yaml.Node, path: FieldPath) -> Iterator[tuple[FieldPath, int]]:
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*path, str(key.value))
            yield from _lines(value, inner)
            yield inner, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for position, value in enumerate(node.value):
            yield from _lines(value, (*path, position))
