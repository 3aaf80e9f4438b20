"""Stored statuses in which anything may stand at any place, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.support.version_one_records import recorded

UNREADABLE_TIMES = ("yesterday", "2026-01-01T00:00:00", "9999-12-31T23:59:59Z", "")
"""No time; one without an offset; one to which no pause can be added; nothing."""
_TIMES = st.sampled_from(UNREADABLE_TIMES) | st.datetimes().map(lambda time: time.isoformat() + "Z")
_JUNK = _TIMES | st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=50),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)


def garbled() -> st.SearchStrategy[dict[str, Any]]:
    """A recorded status of which up to twenty parts are replaced."""
    paths = _paths(_complete_status())[1:]
    fields = [path for path in paths if len(path) == 1]
    changes = st.tuples(st.sampled_from(fields) | st.sampled_from(paths), _JUNK)
    return st.lists(changes, max_size=20).map(_changed)


def _complete_status() -> dict[str, Any]:
    """The recorded status, of a job that trains, with what others have."""
    return {**recorded("job_status"), "completionTime": "2026-01-01T00:00:00Z"}


def _changed(changes: list[tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
    stored = _complete_status()
    for path, junk in changes:
        _put(stored, path, junk)
    return stored


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a JSON value."""
    if not isinstance(value, dict | list):
        return [path]
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return [path, *(found for key, part in parts for found in _paths(part, (*path, key)))]


def _put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    """Replace the part at `path`, where an earlier change has left something there."""
    for part in path[:-1]:
        document = document[part] if _holds(document, part) else None
    if _holds(document, path[-1]):
        document[path[-1]] = value


def _holds(document: Any, part: Any) -> bool:
    if isinstance(document, list):
        return isinstance(part, int) and part < len(document)
    return isinstance(document, dict) and part in document
