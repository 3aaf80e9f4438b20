"""An agent that reports since when its coordinator does not answer, on a loopback address."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

from regroup_trainer.protocol.desired import CoordinatorContact
from regroup_trainer.protocol.environment import AGENT_METRICS_PORT
from tests.support.loopback_server import LoopbackServer, QuietHandler
from tests.support.own_addresses import own_addresses

_addresses = own_addresses(82)


class AgentStub(LoopbackServer):
    """Answers GET /v1/coordinator with `contact`, and keeps the tokens. A context manager."""

    def __init__(self, contact: CoordinatorContact) -> None:
        self.contact = contact
        self.address = next(_addresses)
        self.tokens: list[str] = []
        super().__init__(self.address, AGENT_METRICS_PORT)

    def _handler(stub) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            def do_GET(self) -> None:
                stub.tokens.append(self.headers.get("Authorization", ""))
                body = stub.contact.model_dump_json().encode()
                self.send_response(200 if self.path == "/v1/coordinator" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler
