"""Times as Kubernetes writes them, such as 2026-01-01T00:00:00Z."""

from __future__ import annotations

from datetime import datetime

_LAST_YEAR = 9998
"""The year after it is the last one that Python knows, and leaves no room to add a pause."""


def parse_time(text: str) -> datetime:
    """The time, with its offset from UTC. Raises ValueError where the text is not such a time."""
    time = datetime.fromisoformat(text)
    if time.utcoffset() is None:
        raise ValueError(f"{text!r} has no offset from UTC, such as Z")
    if time.year > _LAST_YEAR:
        raise ValueError(f"{text!r} is later than the year {_LAST_YEAR}")
    return time


def format_time(time: datetime) -> str:
    """The text of a time in UTC, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
