"""A coordinator that reports what a test wants: the protocol's routes on a loopback address.

For tests of the operator, where no kubelet runs the real one.
"""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from regroup_trainer.protocol.addresses import COORDINATOR_PORT
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.job_status import WATCH_LINE_SECONDS, CoordinatorStatus
from tests.support.loopback_server import LoopbackServer, QuietHandler
from tests.support.own_addresses import own_addresses
from tests.support.version_one_records import recorded

_addresses = own_addresses(83)


class CoordinatorStub(LoopbackServer):
    """Answers GET /v1/watch and /v1/status with `status`, and keeps what it receives. A context
    manager.
    """

    has_watch = True

    def __init__(self, status: CoordinatorStatus) -> None:
        self.address = next(_addresses)
        self.desired: list[Desired] = []
        self.lost: list[Lost] = []
        self.tokens: set[str] = set()
        self.code = 200
        """Of the answers."""
        self.answers = threading.Event()
        """Requests wait while it is cleared."""
        self.answers.set()
        self._status = status
        self._news = threading.Condition()
        self._closed = False
        super().__init__(self.address, COORDINATOR_PORT)

    def __exit__(self, *error: Any) -> None:
        with self._news:
            self._closed = True
            self._news.notify_all()
        super().__exit__(*error)

    def report(self, **changes: Any) -> None:
        """Change the status."""
        with self._news:
            changes["sequence"] = self._status.sequence + 1
            self._status = self._status.model_copy(update=changes)
            self._news.notify_all()

    def encode(self, status: CoordinatorStatus) -> str:
        """The body of an answer."""
        return status.model_dump_json()

    def decode_desired(self, body: bytes) -> Desired:
        """The body of PUT /v1/desired. Raises ValueError when the protocol does not allow it."""
        return Desired.model_validate_json(body)

    def _answer(self, after: int, wait: float) -> CoordinatorStatus:
        with self._news:
            self._news.wait_for(lambda: self._closed or self._status.sequence > after, wait)
            return self._status

    def _handler(stub) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            def do_GET(self) -> None:
                stub.tokens.add(self.headers.get("Authorization", ""))
                stub.answers.wait(30)
                if self.path != "/v1/watch":
                    query = parse_qs(urlsplit(self.path).query)
                    status = stub._answer(int(query["after"][0]), float(query["wait"][0]))
                    self._reply(stub.encode(status))
                elif stub.has_watch and stub.code == 200:
                    self._watch()
                else:
                    self._reply(stub.encode(stub._status), None if stub.has_watch else 404)

            def _watch(self) -> None:
                self.send_response(200)
                self.end_headers()
                seen = -1
                with contextlib.suppress(OSError):
                    while not stub._closed:
                        status = stub._answer(seen, WATCH_LINE_SECONDS)
                        stub.answers.wait(30)
                        line = stub.encode(status) if status.sequence > seen else ""
                        self.wfile.write(line.encode() + b"\n")
                        seen = status.sequence

            def do_PUT(self) -> None:
                stub.desired.append(stub.decode_desired(self._body()))
                self._reply("{}")
                stub.report(revision=stub.desired[-1].revision)

            def do_POST(self) -> None:
                stub.lost.append(Lost.model_validate_json(self._body()))
                self._reply("{}")

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers["Content-Length"]))

            def _reply(self, text: str, code: int | None = None) -> None:
                self.send_response(code or stub.code)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

        return Handler


class VersionOneStub(CoordinatorStub):
    """The same, as a coordinator of release 0.1 speaks: protocol 1, and without a watch."""

    has_watch = False

    def encode(self, status: CoordinatorStatus) -> str:
        """The recorded answer, with what the test reports."""
        given = json.loads(status.model_dump_json(exclude={"outcome", "waiting", "recoveries"}))
        document = {**recorded("status"), **given, "protocol": 1, "verdict": None}
        return json.dumps(document)

    def decode_desired(self, body: bytes) -> Desired:
        """As release 0.1 does, which refuses fields that it does not know."""
        foreign = set(json.loads(body)) - set(recorded("desired_fields"))
        assert not foreign, f"release 0.1 refuses {foreign}"
        return super().decode_desired(body)
