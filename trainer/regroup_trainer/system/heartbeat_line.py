"""A connection that carries heartbeats alone, both ends of it: frames of 16 bytes, after an HTTP
request that upgrades it. The request says for whom they are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final, NamedTuple, Self

UPGRADE: Final = "regroup-heartbeats"
"""The protocol that the request asks for."""
HEADERS: Final = {"Connection": "Upgrade", "Upgrade": UPGRADE}
ACCEPTED: Final = (
    f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n"
).encode()
KEEPALIVE: Final = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
"""A peer whose machine has died is found by the kernel within two minutes."""
MOST_FRAMES: Final = 64
"""That are read of a connection before others have their turn."""
READ_SECONDS: Final = 0.02
"""Least time between two reads of all connections. For each, the event loop has a round of its own,
which costs more than a frame does.
"""
_FRAME: Final = struct.Struct("!BBxxIQ")
_MOST_MILLISECONDS: Final = 2**32 - 1
_READ_BYTES: Final = 4096
log = logging.getLogger(__name__)


class Kind(IntEnum):
    """What a frame means."""

    IMPORTING = 1
    """The worker imports torch."""
    ALIVE = 2
    KNOWN = 3
    """The answer to who wants one."""
    UNKNOWN = 4
    """The answer to who is no member."""


_KINDS: Final = {kind.value: kind for kind in Kind}


class Beat(NamedTuple):
    """One of either end."""

    kind: Kind
    stamp: int
    """Monotonic nanoseconds of the sender. An answer repeats it."""
    wants_answer: bool = False
    delay: float = 0.0
    """Seconds by which the sender got its turn late."""

    def encode(self) -> bytes:
        """As it is sent."""
        delay = min(round(self.delay * 1000), _MOST_MILLISECONDS)
        return _FRAME.pack(self.kind, self.wants_answer, delay, self.stamp)

    @classmethod
    def decode(cls, text: bytes) -> Self:
        """Read one. Raises ValueError for a kind that is not known."""
        number, wants_answer, delay, stamp = _FRAME.unpack(text)
        if (kind := _KINDS.get(number)) is None:
            raise ValueError(f"{number} is no kind of frame")
        return cls(kind, stamp, bool(wants_answer), delay / 1000)


class FrameBuffer:
    """Makes frames of what arrives."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> list[Beat]:
        """The frames that are whole now. Raises ValueError when one cannot be read."""
        size = _FRAME.size
        if len(data) == size and not self._rest:  # as usual
            return [Beat.decode(data)]
        data = self._rest + data
        whole = len(data) - len(data) % size
        self._rest = data[whole:]
        return [Beat.decode(data[at : at + size]) for at in range(0, whole, size)]


class HeartbeatReaders:
    """The coordinator's ends of all connections, which are read together. asyncio would wake each
    protocol by itself.

    One epoll instance holds their sockets, and asyncio waits for that as for one file. It exists as
    long as there are connections.
    """

    def __init__(self) -> None:
        self._epoll: select.epoll | None = None
        self._readers: dict[int, HeartbeatReader] = {}
        """By their file descriptors."""
        self._next_read: asyncio.TimerHandle | None = None

    def accept(
        self,
        transport: asyncio.Transport,
        on_frame: Callable[[Beat], bool],
        on_end: Callable[[], object],
    ) -> asyncio.BaseProtocol:
        """The protocol that a connection gets from now on; the upgrade is accepted. `on_frame` gets
        the newest frame that has arrived, with the greatest delay of all, and returns whether its
        sender is known; `on_end` is called at the end.
        """
        connected = transport.get_extra_info("socket")
        keep_alive(connected)
        transport.pause_reading()
        transport.write(ACCEPTED)
        descriptor: int = connected.fileno()

        def end() -> None:
            self._remove(descriptor)
            on_end()

        if self._epoll is None:
            self._epoll = select.epoll()
            self._await()
        self._epoll.register(descriptor, select.EPOLLIN)
        reader = self._readers[descriptor] = HeartbeatReader(transport, on_frame, end)
        return reader

    def read(self) -> bool:
        """Read each connection where something has arrived, once. Whether there was any."""
        if self._epoll is None:
            return False
        arrived = self._epoll.poll(0, len(self._readers))
        for descriptor, _ in arrived:
            self._readers[descriptor].read(descriptor)
        return bool(arrived)

    def _remove(self, descriptor: int) -> None:
        """A connection is over. Its socket is still open."""
        assert self._epoll is not None, "there was a connection"
        self._epoll.unregister(descriptor)
        del self._readers[descriptor]
        if not self._readers:
            self._pause()
            self._epoll.close()
            self._epoll = None

    def _await(self) -> None:
        """Read as soon as something arrives."""
        assert self._epoll is not None, "there are connections"
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        self._pause()
        self._read_on()

    def _read_on(self) -> None:
        """Read, and again after READ_SECONDS; where nothing has arrived, wait for it."""
        if self.read():
            loop = asyncio.get_running_loop()
            self._next_read = loop.call_later(READ_SECONDS, self._read_on)
        else:
            self._await()

    def _pause(self) -> None:
        assert self._epoll is not None, "there are connections"
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        if self._next_read is not None:
            self._next_read.cancel()
            self._next_read = None


class HeartbeatReader(asyncio.Protocol):
    """One of them."""

    def __init__(
        self,
        transport: asyncio.Transport,
        on_frame: Callable[[Beat], bool],
        on_end: Callable[[], object],
    ) -> None:
        self._transport = transport
        self._on_frame = on_frame
        self._on_end = on_end
        self._frames = FrameBuffer()

    def connection_lost(self, _error: Exception | None) -> None:
        """The connection is over."""
        self._on_end()

    def read(self, descriptor: int) -> None:
        """Handle what has arrived at its socket. The connection ends where its peer has ended it,
        and where it sends anything but frames.
        """
        try:
            frames = self._frames.add(_read(descriptor))
        except BlockingIOError:
            return  # nothing has, after all
        except (OSError, ValueError):
            self._transport.abort()
            return
        try:
            if frames:
                self._handle(frames)
        except Exception:  # of ours: the others are read all the same
            log.exception("closing a connection with heartbeats")
            self._transport.abort()

    def _handle(self, frames: list[Beat]) -> None:
        newest = frames[-1]
        if len(frames) > 1:
            newest = newest._replace(
                delay=max(frame.delay for frame in frames),
                wants_answer=any(frame.wants_answer for frame in frames),
            )
        if not self._on_frame(newest):
            self._answer(Kind.UNKNOWN, newest)
        elif newest.wants_answer:
            self._answer(Kind.KNOWN, newest)

    def _answer(self, kind: Kind, frame: Beat) -> None:
        """A peer that has not read the last answer gets no other."""
        if not self._transport.get_write_buffer_size():
            self._transport.write(Beat(kind, frame.stamp).encode())


def _read(descriptor: int) -> bytes:
    """What has arrived, at most MOST_FRAMES. Raises OSError, also when the peer has ended it."""
    if data := os.read(descriptor, MOST_FRAMES * _FRAME.size):
        return data
    raise ConnectionResetError("the agent closed the connection")


class HeartbeatSender:
    """The agent's end, for one thread: a connection that was upgraded. Its methods raise OSError
    when it is over.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._frames = FrameBuffer()

    def fileno(self) -> int:
        """To wait for answers."""
        return self._socket.fileno()

    def send(self, frame: Beat) -> None:
        """Send a frame. Blocks while the buffer of the socket is full; raises OSError."""
        self._socket.sendall(frame.encode())

    def receive(self) -> list[Beat]:
        """The answers that have arrived. It waits for the first."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the coordinator closed the connection")
        try:
            return self._frames.add(data)
        except ValueError as error:
            raise ConnectionAbortedError(f"no answer of a coordinator: {error}") from None


def keep_alive(connected: socket.socket) -> None:
    """Have the kernel notice that the other machine is gone."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
