"""The spans of a trace, and the request that exports them: OTLP as JSON. Pure.

Ids are hashes of what a trace is about. So programs that never speak to each other add their spans
to the same trace, and to the same parent.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

Value = str | int | float | bool

MOST_SPANS: Final = 64
"""Of a request."""
MOST_ATTRIBUTES: Final = 24
"""Of a span, and of what made it."""
TEXT_CHARACTERS: Final = 256
"""Of a name or a value."""
ROOT: Final = ""
"""The path of the span that has no parent."""
_LATEST = (2**63 - 1) // 10**9
"""Seconds since the epoch, up to the year 2262: what fits into 63 bits as nanoseconds."""
_INTERNAL, _ERROR = 1, 2
"""Kind and status code, as numbers: OTLP's JSON has no names for them."""


def trace_id(*about: str) -> str:
    """The id of the trace that is about this: 32 hexadecimal digits."""
    return hashlib.sha256("\0".join(about).encode(errors="replace")).hexdigest()[:32]


def span_id(trace: str, path: str) -> str:
    """The id of the span at this place in a trace: 16 hexadecimal digits."""
    return hashlib.sha256(f"{trace}\0{path}".encode(errors="replace")).hexdigest()[:16]


@dataclass(frozen=True)
class Span:
    """Something that took time."""

    trace: str
    """Id of its trace."""
    path: str
    """Its place there, unique in the trace: `restore/load` is a part of `restore`, and both are
    parts of ROOT.
    """
    name: str
    start: float
    """Wall clock, seconds since the epoch."""
    end: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    """Why it failed; empty: it did not."""

    @property
    def parent(self) -> str:
        """Id of the span that it is a part of; empty for ROOT."""
        return span_id(self.trace, self.path.rpartition("/")[0]) if self.path != ROOT else ""


def export_request(resource: Mapping[str, Value], spans: Iterable[Span]) -> bytes:
    """The body of a request that exports the first MOST_SPANS of these. `resource` says what made
    them. Times are clamped, and texts cut, whatever they hold.
    """
    listed = [_document(span) for span, _ in zip(spans, range(MOST_SPANS), strict=False)]
    scope = {"scope": {"name": "regroup"}, "spans": listed}
    origin = {"attributes": [*_attributes(resource)]}
    body = {"resourceSpans": [{"resource": origin, "scopeSpans": [scope]}]}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def _document(span: Span) -> dict[str, Any]:
    start = _nanoseconds(span.start)
    status = {"code": _ERROR, "message": _text(span.error)} if span.error else {}
    return {
        "traceId": span.trace,
        "spanId": span_id(span.trace, span.path),
        "parentSpanId": span.parent,
        "name": _text(span.name),
        "kind": _INTERNAL,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(max(start, _nanoseconds(span.end))),
        "attributes": [*_attributes(span.attributes)],
        "status": status,
    }


def _attributes(values: Mapping[str, Value]) -> Iterator[dict[str, Any]]:
    for (key, value), _ in zip(values.items(), range(MOST_ATTRIBUTES), strict=False):
        yield {"key": _text(key), "value": _value(value)}


def _value(value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(max(-(2**63), min(value, 2**63 - 1)))}
        case float() if math.isfinite(value):
            return {"doubleValue": value}
    return {"stringValue": _text(str(value))}


def _text(text: str) -> str:
    """The beginning, as UTF-8 can hold it."""
    return text[:TEXT_CHARACTERS].encode(errors="replace").decode()


def _nanoseconds(seconds: float) -> int:
    if not seconds > 0:  # so is NaN
        return 0
    return int(min(seconds, _LATEST) * 10**9)
