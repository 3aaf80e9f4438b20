"""Remembers the newest names, so that memory stays bounded however long the operator runs."""

from __future__ import annotations

from collections import OrderedDict


class RecentNames:
    """A set of at most `limit` names. The one that was used longest ago makes room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._names: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        """Whether the name is remembered; looking it up counts as use."""
        if name not in self._names:
            return False
        self._names.move_to_end(name)
        return True

    def add(self, name: str) -> None:
        """Remember a name."""
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > self._limit:
            self._names.popitem(last=False)
