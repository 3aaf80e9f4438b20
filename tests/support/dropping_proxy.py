"""A TCP proxy that loses connections, or goes on without a word, when a test wants it."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self


class DroppingProxy:
    """Passes bytes to a port of this machine. An asynchronous context manager."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._passes = asyncio.Event()
        self._passes.set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()
        self.drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def drop(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            writer.transport.abort()

    def mute(self, *, muted: bool = True) -> None:
        """Keep connections open, and pass nothing on until not `muted`."""
        (self._passes.clear if muted else self._passes.set)()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers |= {writer, far_writer}
        for way in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass(*way))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                await self._passes.wait()
                target.write(data)
                await target.drain()
        self._writers.discard(target)
        target.close()
