"""Accepts connections, and has the newest ones served first where more come than can be served.

asyncio serves the oldest first. So a process that needs longer for all of them than their peers
wait serves those that are about to be given up, and so it goes on: every peer comes again. The
newest has the longest time left. One that its peer has closed costs no more than a look.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

BACKLOG: Final = 4096
"""Connections that the kernel keeps until they are accepted: of all agents of a large job, whose
coordinator has started again. The kernel allows as many by default.
"""
MOST_ACCEPTED: Final = 1024
"""At a time, before what has arrived over other connections is read."""
MOST_SERVED: Final = 64
"""That are taken at a time. What they send is read before the next ones are taken."""
LONGEST_WAIT_SECONDS: Final = 10.0
"""Until a connection is closed that was never served."""
LATE_SECONDS: Final = 0.5
"""A peer that gives up after it has waited so long comes again."""
AGAIN_SECONDS: Final = 4.0
"""Until it has come again, and what it has to say is read."""
PAUSE_SECONDS: Final = 1.0
"""Without accepting any, after this process had no place for one more."""
_ESTABLISHED: Final = 1
"""The state of a TCP connection that neither end has closed."""
log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    """A connection that is to be served."""

    peer: socket.socket
    since: float

    @property
    def is_open(self) -> bool:
        """Whether the peer has not closed it."""
        state = self.peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state[0] == _ESTABLISHED


class NewestFirst:
    """Listens on sockets, and serves each connection by a protocol of `make`. At most `limit` wait;
    beyond that the oldest is closed.
    """

    def __init__(
        self,
        listening: Iterable[socket.socket],
        make: Callable[[], asyncio.Protocol],
        limit: Callable[[], int],
    ) -> None:
        self._listening = tuple(listening)
        self._make = make
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting] = deque()
        """The oldest first."""
        self._missed_since = self._missed_until = -math.inf
        """Since when peers wait who have given up connections, and until when they come again."""
        self._serving: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_pending = False
        """Whether the next ones are about to be served."""
        for one in self._listening:
            one.setblocking(False)
            one.listen(BACKLOG)
        self._accept_all()

    @property
    def addresses(self) -> list[object]:
        """Where it listens: host, port, and more for IPv6."""
        return [one.getsockname() for one in self._listening]

    def waits_since(self) -> float | None:
        """Since when the oldest peer waits: a monotonic time, at most LONGEST_WAIT_SECONDS ago.
        None: all are served. One that has given up after a while counts until it is back.
        """
        now = time.monotonic()
        self._drop_old(now)
        since = self._waiting[0].since if self._waiting else math.inf
        if now < self._missed_until:
            since = min(since, max(self._missed_since, now - LONGEST_WAIT_SECONDS))
        return None if since == math.inf else since

    async def close(self) -> None:
        """Accept none from now on, and close those that wait. Those that are taken just now are
        served after that: whoever ends the protocols finds them all.
        """
        if self._timer is not None:
            self._timer.cancel()
        for one in self._listening:
            self._loop.remove_reader(one)
            one.close()
        while self._waiting:
            self._waiting.pop().peer.close()
        await asyncio.gather(*self._serving)

    def _accept_all(self) -> None:
        self._timer = None
        for one in self._listening:
            self._loop.add_reader(one, self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        """Take what the kernel has."""
        now = time.monotonic()
        for _ in range(MOST_ACCEPTED):
            try:
                peer, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:  # too many files are open, or no memory is left
                log.warning("no connections are accepted for %g s: %s", PAUSE_SECONDS, error)
                self._pause()
                break
            peer.setblocking(False)
            self._waiting.append(_Waiting(peer, now))
        self._serve_soon()

    def _pause(self) -> None:
        for one in self._listening:
            self._loop.remove_reader(one)
        if self._timer is None:
            self._timer = self._loop.call_later(PAUSE_SECONDS, self._accept_all)

    def _drop_old(self, now: float) -> None:
        """Close the oldest that are given up, have waited too long, or are too many."""
        while self._waiting:
            oldest, most = self._waiting[0], max(self._limit(), 1)
            is_late = now - oldest.since > LONGEST_WAIT_SECONDS
            if oldest.is_open and not is_late and len(self._waiting) <= most:
                return
            self._drop(self._waiting.popleft(), now)

    def _drop(self, one: _Waiting, now: float) -> None:
        """Close a connection that was not served."""
        one.peer.close()
        if now - one.since >= LATE_SECONDS:
            before = self._missed_since if now < self._missed_until else math.inf
            self._missed_since, self._missed_until = min(before, one.since), now + AGAIN_SECONDS

    def _serve_soon(self) -> None:
        if self._waiting and not self._is_pending:
            self._is_pending = True
            self._loop.call_soon(self._serve_some)

    def _serve_some(self) -> None:
        self._is_pending = False
        now = time.monotonic()
        self._drop_old(now)
        places = MOST_SERVED
        while self._waiting and places:
            newest = self._waiting.pop()
            if newest.is_open:
                places -= 1
                self._serve(newest.peer)
            else:
                self._drop(newest, now)
        self._serve_soon()

    def _serve(self, peer: socket.socket) -> None:
        task = self._loop.create_task(self._connect(peer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _connect(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError):  # its peer closes it just now
            await self._loop.connect_accepted_socket(self._make, peer)


async def bound_sockets(address: str | None, port: int) -> list[socket.socket]:
    """A socket for each address (None: all of this machine) and a port (0: any free one). Raises
    OSError.
    """
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        asyncio.Protocol, address, port, reuse_address=True, start_serving=False
    )
    try:
        return [socket.socket(fileno=os.dup(one.fileno())) for one in server.sockets]
    finally:
        server.close()
