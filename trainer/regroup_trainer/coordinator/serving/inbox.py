"""Messages of agents that have arrived and are not handled yet. Pure.

A coordinator that is behind handles first what others wait for: a rank that has ended holds up all
others. Progress that newer progress has overtaken is not read at all. The messages of a connection
keep their order.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

MOST_MESSAGES: Final = 64
"""Of a connection. What comes after them is not read yet."""
MOST_CHARACTERS: Final = 128 * 1024
"""The same, of all of them together and without the last one."""
URGENT_IN_A_ROW: Final = 16
"""Connections with urgent messages that go before one without."""

_URGENT = re.compile('"kind":"(?:rank_exit|parked|finished|leaving)"')
_KIND, _PROGRESS = '"kind":"', '"kind":"progress"'
_RANK = re.compile(r'"rank":(\d+)')
"""As agents write JSON. Within a text there would be a backslash before each quotation mark."""
_Connection = TypeVar("_Connection", bound=Hashable)


@dataclass
class _Queue:
    texts: deque[tuple[int, str]] = field(default_factory=deque)
    """Each with its number in the order of arrival."""
    characters: int = 0
    urgent: int = 0


class Inbox(Generic[_Connection]):
    """Of all connections."""

    def __init__(self) -> None:
        self._queues: OrderedDict[_Connection, _Queue] = OrderedDict()
        """The one whose turn comes next is the first."""
        self._urgent: OrderedDict[_Connection, None] = OrderedDict()
        """The connections that have sent something urgent, in the same order."""
        self._in_a_row = 0
        self._arrived: OrderedDict[int, float] = OrderedDict()
        """Number -> when that message arrived, at the earliest; the oldest first."""
        self._next_number = 0

    def __len__(self) -> int:
        """How many connections have messages here."""
        return len(self._queues)

    def waits_since(self) -> float | None:
        """When the oldest of all messages arrived, at the earliest; None: there is none."""
        return next(iter(self._arrived.values()), None)

    def add(self, connection: _Connection, text: str, since: float) -> None:
        """A message has arrived, at `since` (monotonic) or after it. This never goes back."""
        queue = self._queues.setdefault(connection, _Queue())
        if queue.texts and _is_overtaken(queue.texts[-1][1], text):
            number, overtaken = queue.texts.pop()
            queue.characters -= len(overtaken)
            del self._arrived[number]
        queue.texts.append((self._next_number, text))
        self._arrived[self._next_number] = since
        self._next_number += 1
        queue.characters += len(text)
        if _URGENT.search(text):
            queue.urgent += 1
            self._urgent.setdefault(connection)

    def is_full(self, connection: _Connection) -> bool:
        """Whether nothing more of a connection is to be read now."""
        queue = self._queues.get(connection)
        return queue is not None and (
            len(queue.texts) >= MOST_MESSAGES or queue.characters >= MOST_CHARACTERS
        )

    def take(self) -> tuple[_Connection, str]:
        """The message to handle next, with its connection. There must be one."""
        is_urgent = bool(self._urgent) and self._in_a_row < URGENT_IN_A_ROW
        self._in_a_row = self._in_a_row + 1 if is_urgent else 0
        connection = next(iter(self._urgent if is_urgent else self._queues))
        text = self.take_of(connection)
        assert text is not None, "a connection without messages is not listed"
        for waiting in (self._queues, self._urgent):
            if connection in waiting:
                waiting.move_to_end(connection)
        return connection, text

    def take_of(self, connection: _Connection) -> str | None:
        """The oldest message of a connection; None: there is none."""
        queue = self._queues.get(connection)
        if queue is None:
            return None
        number, text = queue.texts.popleft()
        del self._arrived[number]
        queue.characters -= len(text)
        queue.urgent -= bool(_URGENT.search(text))
        if not queue.urgent:
            self._urgent.pop(connection, None)
        if not queue.texts:
            del self._queues[connection]
        return text


def _is_overtaken(older: str, newer: str) -> bool:
    """Whether two messages hold progress alone, the newer one of all ranks of the older."""
    if not (_is_progress(older) and _is_progress(newer)):
        return False
    return {*_RANK.findall(older)} <= {*_RANK.findall(newer)}


def _is_progress(text: str) -> bool:
    """Whether a message holds nothing else."""
    count = text.count(_PROGRESS)
    return 0 < count == text.count(_KIND) - 1
