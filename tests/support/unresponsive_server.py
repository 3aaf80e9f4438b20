"""An HTTP server that takes requests, and answers them or not, as a test wants."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

from tests.support.loopback_server import LoopbackServer, QuietHandler


class UnresponsiveServer(LoopbackServer):
    """Answers each request with 204 while `answers`, and not at all otherwise."""

    def __init__(self, *, answers: bool) -> None:
        self.answers = answers
        super().__init__("127.0.0.1", 0)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                if not server.answers:
                    server._ends.wait(30)
                    return
                self.send_response(204)
                self.end_headers()

        return Handler
