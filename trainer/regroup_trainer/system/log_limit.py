"""Bounds what others can make a process log. Torch-free."""

from __future__ import annotations

import logging

PERIOD_SECONDS = 10.0
MOST_RECORDS = 5
"""Of one kind, in a period."""
_MOST_KINDS = 100


class LogLimit(logging.Filter):
    """Lets five records of one kind pass in ten seconds. The next one says how many it left out.

    Records are of one kind when they have the same text before their values are put in. Use it as a
    filter of a logger.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; it may get a sentence about others."""
        name = str(record.msg)
        if name not in self._kinds and len(self._kinds) >= _MOST_KINDS:
            name = ""
        kind = self._kinds.setdefault(name, _Kind(record.created))
        if not 0 <= record.created - kind.since < PERIOD_SECONDS:  # the clock may go back
            if kind.left_out:
                record.msg = f"{record.msg} (and {kind.left_out} more of this kind, left out)"
            self._kinds[name] = kind = _Kind(record.created)
        kind.count += 1
        kind.left_out += kind.count > MOST_RECORDS
        return kind.count <= MOST_RECORDS


class _Kind:
    def __init__(self, since: float) -> None:
        self.since = since
        self.count = 0
        self.left_out = 0
