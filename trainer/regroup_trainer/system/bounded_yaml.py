"""Reads YAML that somebody wrote, and raises nothing but yaml.YAMLError. It needs PyYAML.

A name for a value (`&a`, `*a`) is allowed, but may not be used to write a file of a few lines that
stands for millions of values. A value of a wrong form (`!!int x`, a date that does not exist, a
number of thousands of digits) is an error with its line. So is a key that stands twice, of which
PyYAML would take the last.
"""

from __future__ import annotations

from typing import Any

import yaml

MOST_NODES = 20_000
"""Values and keys of a file, each counted where it is used."""
MOST_LEVELS = 100
MOST_DIGITS = 1000
"""Characters of a number, a date or a truth value."""
_TEXT = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:binary")
_MERGE = "tag:yaml.org,2002:merge"
_SHOWN = 100
"""Characters of a key in a message."""


class BoundedLoader(yaml.SafeLoader):
    """A loader of plain values. A file has at most MOST_NODES, a document MOST_LEVELS."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._open: list[_Extent] = []
        """The nodes that are being read."""
        self._before = 0
        """Nodes of earlier documents."""
        self._read: dict[int, _Extent] = {}
        """By the identity of a node. A name finds its node here, unless the node holds itself."""

    def compose_document(self) -> Any:
        """The next document. Raises yaml.YAMLError."""
        self._read.clear()
        node = super().compose_document()
        self._before += self._read[id(node)].nodes
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        """The next node with all that is in it. Raises yaml.YAMLError."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self._open.append(_Extent())
        self._require_levels(0, event)
        node = super().compose_node(parent, index)
        extent = self._open.pop()
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._read:
                raise _error(f"*{str(event.anchor)[:_SHOWN]} stands in what it names", event)
            extent = self._read[id(node)]
            self._require_levels(extent.levels, event)
        else:
            self._read[id(node)] = extent
        if self._open:
            self._open[-1].add(extent)
            if self._before + self._open[-1].nodes > MOST_NODES:
                raise _error(f"more than {MOST_NODES} values (*a counts as what it names)", event)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """A mapping. Raises yaml.YAMLError, also for a key that stands twice."""
        node = super().compose_mapping_node(anchor)
        found = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in found:
                    raise _error(f"the key {key.value[:_SHOWN]!r} stands twice", key)
                found.add((key.tag, key.value))
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """The value of a node. Raises yaml.YAMLError."""
        try:
            if isinstance(node, yaml.ScalarNode) and node.tag not in _TEXT:
                _require_short(node.value)
            return super().construct_object(node, deep)
        except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError) as error:
            kind = node.tag.rpartition(":")[2][:_SHOWN]
            raise _error(f"a value is no {kind}: correct it, or put it in quotes", node) from error

    def _require_levels(self, inside: int, event: Any) -> None:
        if len(self._open) + inside > MOST_LEVELS:
            raise _error(f"more than {MOST_LEVELS} levels", event)


def _require_short(value: str) -> None:
    if len(value) > MOST_DIGITS:
        raise ValueError(f"{len(value)} characters")


class _Extent:
    """How much a node stands for, with what its names stand for."""

    def __init__(self) -> None:
        self.nodes = 1
        self.levels = 0
        """Below it."""

    def add(self, inner: _Extent) -> None:
        """Count a node in it."""
        self.nodes += inner.nodes
        self.levels = max(self.levels, inner.levels + 1)


def explain(error: yaml.YAMLError) -> tuple[int, str]:
    """Line, counted from 1, and what is wrong there."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        return (mark.line + 1 if mark else 1), str(error.problem or error.context)
    if isinstance(error, yaml.reader.ReaderError):
        return 1, f"{error.reason} at character {error.position + 1}"
    return 1, str(error)


def _error(problem: str, at: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
