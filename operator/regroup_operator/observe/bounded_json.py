"""Decodes JSON that tenants have a part in. Bounded in size and depth, without recursion over what
was written. Pure.

Python's own decoder recurses, and so does most code that works on its result. How deep either may
go depends on the release of Python and on the stack. pydantic_core's decoder counts the levels, and
refuses what lies too deep. That is cut out, and the rest decoded by Python's.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from pydantic_core import from_json

MOST_BYTES = 4 * 1024 * 1024
"""Of one answer, or of one line of a watch. etcd takes 1.5 MiB an object, the API server 3 MiB a
request. Decoding takes up to 30 times as much memory.
"""
MOST_LEVELS = 201
"""Objects and lists in one another: as many as pydantic_core takes. A pod with its managedFields
has about 15.
"""

_TO_BRACES = bytes.maketrans(b"[]", b"{}")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]', re.DOTALL)

_LARGE_PART = re.compile(
    rb'"(?:annotations|ownerReferences|finalizers|managedFields|spec)": ?[\[{]'
)


class UndecodableError(ValueError):
    """These bytes are no JSON, or too many. The message says which."""


def decode(data: bytes) -> Any:
    """The value of a JSON document. A part that lies more than MOST_LEVELS deep becomes None,
    whatever it holds.

    Raises UndecodableError for more than MOST_BYTES, and for what is no JSON.
    """
    if len(data) > MOST_BYTES:
        raise UndecodableError(f"it has more than {MOST_BYTES} bytes")
    with contextlib.suppress(ValueError):
        return from_json(data)  # takes less time than a look at the depth
    if is_deep(data, MOST_LEVELS):
        data = _cut(data, MOST_LEVELS)
    try:  # Python's decoder takes half a surrogate, too
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UndecodableError(f"it is no JSON: {error}") from error


def decode_head(data: bytes) -> dict[str, Any] | None:
    """The event of a watch without what makes objects large: its kind, and of the metadata what
    comes before the annotations, the labels included. The rest of the line may be cut off.

    So the API server writes its own types, and all metadata that come without an object. None for
    an object of a definition, whose fields it sorts, and for what is no event.
    """
    large = _LARGE_PART.search(data)
    try:
        event = from_json(data[: large.start()] if large else data, allow_partial=True)
        metadata = event["object"]["metadata"]
        return event if {"name", "resourceVersion"} <= metadata.keys() else None
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def is_deep(data: bytes, levels: int) -> bool:
    """Whether more than `levels` objects and lists lie in one another. Exact for JSON.

    Removes the strings, then the innermost brackets, level by level.
    """
    unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(unescaped.split(b'"')[::2]).translate(_TO_BRACES, _NO_BRACKETS)
    for _ in range(levels):
        if not brackets:
            return False
        if b"{" * (levels + 1) in brackets:
            return True
        brackets = brackets.replace(b"{}", b"")
    return bool(brackets)


def _cut(data: bytes, levels: int) -> bytes:
    """The document with null for each object or list more than `levels` deep."""
    kept, end, level, start = [], 0, 0, 0
    for token in _TOKEN.finditer(data):
        kind = data[token.start()]
        if kind in b"{[":
            level += 1
            if level == levels + 1:
                start = token.start()
        elif kind in b"}]":
            if level == levels + 1:
                kept += [data[end:start], b"null"]
                end = token.end()
            level -= 1
    return b"".join((*kept, data[end:]))
