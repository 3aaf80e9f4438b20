"""A client that does not read is dropped, and nothing is kept for it meanwhile."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp import web

from regroup_trainer.system import line_stream
from regroup_trainer.system.line_stream import LineStream

LINE = b"x" * 65_535
MOST_BUFFERED = 2 * len(LINE)


class Sender:
    """Sends lines for as long as it may."""

    def __init__(self) -> None:
        self.sent = self.buffered = 0
        self.ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        stream = await LineStream.begin(request)
        assert request.transport is not None
        try:
            while True:
                if stream.is_free():
                    await stream.send(LINE)
                    self.sent += 1
                unsent = request.transport.get_write_buffer_size()
                self.buffered = max(self.buffered, unsent)
                await asyncio.sleep(0)
        except (ConnectionError, TimeoutError) as error:
            self.ended.set_result(error)
        return stream.response


async def test_a_client_that_does_not_read_is_dropped_and_costs_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_stream, "SLOW_SECONDS", 0.3)
    application, sender = web.Application(), Sender()
    application.router.add_get("/", sender.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    with socket.create_connection(runner.addresses[0][:2]) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        error = await asyncio.wait_for(sender.ended, 60)
    await runner.cleanup()
    assert "too slow" in str(error)
    assert sender.sent > 0
    assert 0 < sender.buffered < MOST_BUFFERED
