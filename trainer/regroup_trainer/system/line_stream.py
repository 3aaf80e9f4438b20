"""An answer over HTTP that goes on for long, line by line. What a slow client has not taken is not
kept for it: it gets what is true later, or is dropped.
"""

from __future__ import annotations

import asyncio
import time
from typing import Self

from aiohttp import web

SLOW_SECONDS = 10.0
"""A client that leaves the last line for so long is dropped."""


class LineStream:
    """The answer to one request. The connection ends with it."""

    def __init__(self, response: web.StreamResponse, transport: asyncio.WriteTransport) -> None:
        self.response = response
        self._transport = transport
        self._sent_at = time.monotonic()

    @classmethod
    async def begin(cls, request: web.Request) -> Self:
        """Send the head of the answer. Raises ConnectionError when the client is gone."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.force_close()
        await response.prepare(request)
        if not isinstance(request.transport, asyncio.WriteTransport):
            raise ConnectionResetError("the client is gone")
        return cls(response, request.transport)

    def is_free(self) -> bool:
        """Whether the client's side has taken the last line. Raises ConnectionError when it has not
        done so for long: the connection is closed then.
        """
        if not self._transport.get_write_buffer_size():
            return True
        if time.monotonic() - self._sent_at > SLOW_SECONDS:
            self.drop()
            raise ConnectionResetError("the client is too slow")
        return False

    async def send(self, line: bytes) -> None:
        """Send a line while `is_free`. Raises ConnectionError when the client is gone, and
        TimeoutError when it is too slow.
        """
        self._sent_at = time.monotonic()
        async with asyncio.timeout(SLOW_SECONDS):
            await self.response.write(line + b"\n")

    def drop(self) -> None:
        """Close the connection at once."""
        self._transport.abort()
