"""A coordinator that sends bytes of a test's choice, over and over, whatever it is asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self

from regroup_trainer.protocol.environment import COORDINATOR_PORT
from tests.support.own_addresses import own_addresses

_addresses = own_addresses(93)


class RawCoordinator:
    """Sends `first`, and then `more` until the client has had enough, with `pause` seconds between.
    A context manager.
    """

    def __init__(self, first: bytes, more: bytes, pause: float = 0.0) -> None:
        self.address = next(_addresses)
        self.connections = 0
        self._first, self._more, self._pause = first, more, pause
        self._ended = threading.Event()
        self._listener = socket.create_server((self.address, COORDINATOR_PORT))
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                threading.Thread(target=self._send, args=(connection,), daemon=True).start()

    def _send(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(self._first)
            while not self._ended.wait(self._pause):
                connection.sendall(self._more)
