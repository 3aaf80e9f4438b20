"""An agent that says when it last heard its coordinator, on a loopback address."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from regroup_trainer.protocol.addresses import AGENT_METRICS_PORT
from regroup_trainer.protocol.desired import CoordinatorContact
from tests.support.own_addresses import own_addresses

_addresses = own_addresses(82)


class AgentStub:
    """Answers GET /v1/coordinator with `contact`, and keeps the tokens. A context manager."""

    def __init__(self, contact: CoordinatorContact) -> None:
        self.contact = contact
        self.address = next(_addresses)
        self.tokens: list[str] = []
        self._server = ThreadingHTTPServer((self.address, AGENT_METRICS_PORT), self._handler())
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
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(stub) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.tokens.append(self.headers.get("Authorization", ""))
                body = stub.contact.model_dump_json().encode()
                self.send_response(200 if self.path == "/v1/coordinator" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                return

        return Handler
