"""Reads TrainingJob files: YAML with the line of every field, for error messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FieldPath = tuple[str | int, ...]


class ManifestError(Exception):
    """The file is not YAML. The message names file and line."""


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
    """All non-empty documents of a file. Raises ManifestError when it is not YAML, OSError when it
    cannot be read.
    """
    loader = yaml.SafeLoader(file.read_text())
    documents = []
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                value = loader.construct_document(node)
                lines = dict(_lines(node, ()))
                if value is not None:
                    documents.append(Document(file, value, lines))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ManifestError(f"{file}:{line}: not YAML: {error.problem}") from None
    finally:
        loader.dispose()
    return documents


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
