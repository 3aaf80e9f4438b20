"""Connections on which the time that it takes to read what arrives is bounded.

A tenant's program answers. Its status line, headers, interim answers (1xx) and chunks are read by
the operator's one thread before anybody sees a body: a flood of them would take all of its time.
"""

from __future__ import annotations

import functools
import time

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import set_exception

ALLOWED_SECONDS = 0.1
"""Of the thread, for reading from one connection. A status of 4 MiB takes a hundredth of it."""
ALLOWED_SHARE = 0.002
"""Of the thread, for a connection that lasts. A line of a watch takes 0.1 ms."""
MOST_ANSWERS = 8
"""Interim ones and the one that is asked for, that arrive at once."""
_SLICE_BYTES = 16 * 1024
"""Are read before the time is looked at."""


class TooCostlyError(aiohttp.ClientError):
    """Reading what a connection brings takes more of the thread than is allowed."""


class MeteredAnswers(ResponseHandler):
    """Reads what arrives on one connection, and ends it with a TooCostlyError."""

    _spent = 0.0
    _since = float("inf")

    def data_received(self, data: bytes) -> None:
        """Read it in slices. The time is that of the thread: an operator that waits for its turn
        on the machine spends none.
        """
        self._since = min(self._since, time.monotonic())
        for start in range(0, len(data), _SLICE_BYTES):
            begun = time.thread_time()
            super().data_received(data[start : start + _SLICE_BYTES])
            self._spent += time.thread_time() - begun
            age = time.monotonic() - self._since
            allowed = ALLOWED_SECONDS + ALLOWED_SHARE * age
            if self._spent > allowed or len(self._buffer) > MOST_ANSWERS:
                self._end()
                return

    def _end(self) -> None:
        error = TooCostlyError("reading it takes too much time")
        self.set_exception(error)
        if self._payload is not None:
            set_exception(self._payload, error)
        if self.transport is not None:
            self.transport.abort()


class MeteredConnector(aiohttp.TCPConnector):
    """Makes any number of such connections."""

    def __init__(self) -> None:
        super().__init__(limit=0)
        self._factory = functools.partial(MeteredAnswers, loop=self._loop)
