"""Bounds the connections of an HTTP server: how many there are, and how long a first request may
take to arrive. Whoever reaches the port can open connections; agents must get through all the same.

A connection has proven itself when a request with the job's token has come over it. Where there are
too many, the oldest that has not is closed. So a flood of idle ones pushes itself out. Of those
that have, the one that has been idle for longest is closed: nodes that die close nothing, and their
successors must get in. Places are kept free for newcomers, so that they can prove themselves.

Answers cost more than connections. So of those over which requests have come, but no token, there
are only a few, whatever the limit is. One that leaves an answer unread is closed.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from regroup_trainer.system.newest_first import NewestFirst, bound_sockets

HEADER_SECONDS = 10.0
"""For the first request of a connection to arrive. A busy node is slow, too."""
IDLE_SECONDS = 120.0
"""Until a connection is closed that has sent no further request. Heartbeats may come every 60 s."""
NEWCOMERS = 16
"""Places of a limit that only connections which have not proven themselves may have."""
ANSWERED_UNPROVEN = 32
"""Connections at a time that were answered without the token: of probes, metrics, and people."""
UNREAD_SECONDS = 10.0
"""Until a connection without the token is closed whose last answer is not read."""
SPARE_CONNECTIONS = 32
"""Beyond those of the workers: for the operator, probes, metrics, and agents that reconnect."""

OPEN_FILES = 65_536
"""More than an operator needs for all its coordinators, a coordinator for all its agents, and a
rank for all others.
"""


def raise_open_files() -> None:
    """Allow this process, and those that it starts, OPEN_FILES, or as many as its hard limit does:
    each connection is one, and many systems start processes with a soft limit of 1,024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@dataclass(frozen=True)
class Listening:
    """A server that listens until `cleanup`."""

    _runner: web.AppRunner
    _listener: NewestFirst
    _connections: Connections

    @property
    def addresses(self) -> list[Any]:
        """Where it listens: host, port, and more for IPv6."""
        return self._listener.addresses

    async def cleanup(self) -> None:
        """Serve no more."""
        await self._listener.close()
        await self._runner.cleanup()
        self._connections.abort_handed_over()


class Connections:
    """The open connections of one server; `limit` says how many there may be."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._unproven: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}
        """Oldest first."""
        self._answered: dict[asyncio.BaseTransport, asyncio.TimerHandle] = {}
        """Those of the unproven that were answered; the longest idle first."""
        self._proven: dict[asyncio.BaseTransport, None] = {}
        """The one that has been idle for longest first."""
        self._held: set[asyncio.BaseTransport] = set()
        """WebSockets. Their messages are not seen here."""
        self._handed_over: set[asyncio.BaseTransport] = set()
        """Those that aiohttp has let go."""
        self._accepted: NewestFirst | None = None
        self.refused = 0
        """Connections that were closed because there were too many."""

    def __len__(self) -> int:
        """How many are open."""
        return len(self._unproven) + len(self._proven) + len(self._held)

    @property
    def proven(self) -> int:
        """How many have proven themselves."""
        return len(self._proven) + len(self._held)

    async def listen(self, runner: web.AppRunner, address: str | None, port: int) -> Listening:
        """Set up a runner and serve its application. Raises OSError."""
        await runner.setup()
        make = runner.server
        assert make is not None, "the runner is set up"
        sockets = await bound_sockets(address, port)
        listener = NewestFirst(sockets, lambda: _Counted(self, make()), self._limit)
        self._accepted = listener
        return Listening(runner, listener, self)

    def waits_since(self) -> float | None:
        """Since when the oldest connection waits to be served (monotonic); None: none does."""
        return self._accepted.waits_since() if self._accepted is not None else None

    def open(self, transport: asyncio.BaseTransport) -> None:
        """A connection was accepted. One is closed if there are too many: the oldest that has not
        proven itself, perhaps this one.
        """
        loop = asyncio.get_running_loop()
        self._unproven[transport] = loop.call_later(HEADER_SECONDS, _abort, transport)
        if len(self) > max(self._limit(), 1):
            self._push_out(next(iter(self._unproven)))

    def request(self, transport: asyncio.BaseTransport | None) -> None:
        """A whole request has arrived: the connection may be idle from now on."""
        if transport in self._unproven:
            self._unproven[transport].cancel()
        elif transport in self._proven:
            self._proven[transport] = self._proven.pop(transport)

    def answer_unproven(self, transport: asyncio.BaseTransport | None) -> None:
        """A request without the token is about to be answered. One more such connection may be
        too many: then the one that has been idle for longest is closed.
        """
        if transport not in self._unproven:
            return
        self._forget_answered(transport)
        loop = asyncio.get_running_loop()
        self._answered[transport] = loop.call_later(UNREAD_SECONDS, self._end_unread, transport)
        if len(self._answered) > ANSWERED_UNPROVEN:
            self._push_out(next(iter(self._answered)))

    def prove(self, transport: asyncio.BaseTransport | None) -> None:
        """A request with the token has come over this connection."""
        if transport in self._unproven:
            self._unproven.pop(transport).cancel()
            self._forget_answered(transport)
            self._proven[transport] = None
            if len(self._proven) + len(self._held) > max(self._limit() - NEWCOMERS, 1):
                self._push_out(next(iter(self._proven)))

    def has_proven(self, transport: asyncio.BaseTransport | None) -> bool:
        """Whether a request with the token has come over this connection."""
        return transport in self._proven or transport in self._held

    def hold(self, transport: asyncio.BaseTransport | None) -> None:
        """A proven connection is a WebSocket from now on, and never idle."""
        if transport in self._proven:
            del self._proven[transport]
            self._held.add(transport)

    def hand_over(self, transport: asyncio.Transport) -> None:
        """Have aiohttp forget a connection, so that a handler's answer does not go out. It gets
        another protocol, which calls `close` at its end. The connection is idle between calls of
        `request`, as others are.
        """
        counted = transport.get_protocol()
        assert isinstance(counted, _Counted), "the connection came in by `listen`"
        counted.let_go()
        self._handed_over.add(transport)

    def abort_handed_over(self) -> None:
        """Close the connections that aiohttp does not know."""
        for transport in [*self._handed_over]:
            _abort(transport)

    def close(self, transport: asyncio.BaseTransport) -> None:
        """The connection is closed."""
        self._handed_over.discard(transport)
        self._proven.pop(transport, None)
        self._held.discard(transport)
        self._forget_answered(transport)
        if (timer := self._unproven.pop(transport, None)) is not None:
            timer.cancel()

    def _forget_answered(self, transport: asyncio.BaseTransport) -> None:
        if (timer := self._answered.pop(transport, None)) is not None:
            timer.cancel()

    def _end_unread(self, transport: asyncio.BaseTransport) -> None:
        """Close a connection whose answer waits in this process, beyond what the kernel holds."""
        assert isinstance(transport, asyncio.WriteTransport)
        if transport.get_write_buffer_size():
            self._push_out(transport)

    def _push_out(self, transport: asyncio.BaseTransport) -> None:
        self.refused += 1
        self.close(transport)
        _abort(transport)


class _Counted(asyncio.Protocol):
    """Passes everything on to aiohttp's protocol, and says when the connection begins and ends."""

    def __init__(self, connections: Connections, inner: asyncio.Protocol) -> None:
        self._connections = connections
        self._inner = inner
        self._transport: asyncio.BaseTransport | None = None
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._inner.connection_made(transport)
        self._connections.open(transport)

    def let_go(self) -> None:
        """To aiohttp the connection is lost. It stays open: aiohttp would close its transport."""
        self._inner.transport = None  # type: ignore[attr-defined]
        self._inner.connection_lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connections.close(self._transport)
        self._inner.connection_lost(exc)


def _abort(transport: asyncio.BaseTransport) -> None:
    assert isinstance(transport, asyncio.Transport)
    transport.abort()
