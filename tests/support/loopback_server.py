"""An HTTP server of a test, in a thread of its own."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


class QuietHandler(BaseHTTPRequestHandler):
    """Writes no log."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        return


class LoopbackServer:
    """Serves what `_handler` answers. A context manager."""

    def __init__(self, address: str, port: int) -> None:
        self._ends = threading.Event()
        """Ends the wait of a handler that does not answer."""
        self._server = ThreadingHTTPServer((address, port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        raise NotImplementedError
