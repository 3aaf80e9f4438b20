"""Connections on which the time that it takes to read what arrives is bounded.

A tenant's program answers. Its status line, headers, interim answers (1xx) and chunks are read by
the operator's one thread before anybody sees a body: a flood of them would take all of its time.
"""

from __future__ import annotations

import asyncio
import functools
import time

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import set_exception

ALLOWED_SECONDS = 0.1
"""Of the thread, for reading from one connection."""
ALLOWED_SHARE = 0.002
"""Of the thread, for a connection that lasts. A watch takes a tenth of it."""
ALLOWED_EACH = 20e-9
"""Seconds of the thread for each byte. A large status takes a tenth of it, and chunks of one byte
ten times as much.
"""
MOST_ANSWERS = 8
"""Interim ones and the one that is asked for, that arrive at once."""
_SLICE_BYTES = 16 * 1024
"""Are read before the time is looked at."""


class TooCostlyError(aiohttp.ClientError):
    """Reading what a connection brings takes more of the thread than is allowed."""


class MeteredAnswers(ResponseHandler):
    """Reads what arrives on one connection, and ends it with a TooCostlyError."""

    _spent = 0.0
    _bytes = 0
    _since = float("inf")

    def data_received(self, data: bytes) -> None:
        """Read it in slices. The time is that of the thread: an operator that waits for its turn
        on the machine spends none.
        """
        self._since = min(self._since, time.monotonic())
        for start in range(0, len(data), _SLICE_BYTES):
            part, begun = data[start : start + _SLICE_BYTES], time.thread_time()
            super().data_received(part)
            self._spent += time.thread_time() - begun
            self._bytes += len(part)
            if self._spent > self._allowed() or len(self._buffer) > MOST_ANSWERS:
                self._end()
                return

    def _allowed(self) -> float:
        age = time.monotonic() - self._since
        return ALLOWED_SECONDS + ALLOWED_SHARE * age + ALLOWED_EACH * self._bytes

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
        self._factory = functools.partial(_metered, loop=self._loop)


def _metered(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return MeteredAnswers(loop=loop)
