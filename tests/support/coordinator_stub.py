"""A coordinator that reports what a test wants: the protocol's routes on a loopback address.

For tests of the operator, where no kubelet runs the real one.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.environment import COORDINATOR_PORT
from regroup_trainer.protocol.job_status import ASK_LINE, WATCH_LINE_SECONDS, CoordinatorStatus
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
        self.every: list[str] = []
        """The period of each watch that was asked for."""
        self.asks = False
        """Whether its watches say to ask for the status."""
        self._news = threading.Condition()
        self._ended = 0
        """Watches up to this one have ended."""
        super().__init__(self.address, COORDINATOR_PORT)

    def __exit__(self, *error: Any) -> None:
        self.end_watches()
        super().__exit__(*error)

    @property
    def watches(self) -> int:
        """How many were asked for."""
        return len(self.every)

    def end_watches(self) -> None:
        """Close the connections of all watches."""
        with self._news:
            self._ended = self.watches
            self._news.notify_all()

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

    def receive(self, take: Callable[[bytes], None], body: bytes) -> None:
        """Take over a write. It is answered when this returns."""
        take(body)

    def take_desired(self, body: bytes) -> None:
        """Keep it, and report its revision."""
        self.desired.append(self.decode_desired(body))
        self.report(revision=self.desired[-1].revision)

    def take_lost(self, body: bytes) -> None:
        """Keep it."""
        self.lost.append(Lost.model_validate_json(body))

    def _answer(self, after: int, wait: float, watch: int | None = None) -> CoordinatorStatus:
        """`watch`: the number of one, which may end meanwhile."""
        with self._news:
            self._news.wait_for(
                lambda: self._status.sequence > after or (watch and watch <= self._ended), wait
            )
            return self._status

    def _line(self, status: CoordinatorStatus) -> bytes:
        return ASK_LINE if self.asks else self.encode(status).encode()

    def _handler(stub) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            def do_GET(self) -> None:
                stub.tokens.add(self.headers.get("Authorization", ""))
                stub.answers.wait(30)
                if not self.path.startswith("/v1/watch"):
                    query = parse_qs(urlsplit(self.path).query)
                    status = stub._answer(int(query["after"][0]), float(query["wait"][0]))
                    self._reply(stub.encode(status))
                else:
                    stub.every += parse_qs(urlsplit(self.path).query)["every"]
                    self._watch(stub.watches)

            def _watch(self, number: int) -> None:
                if not stub.has_watch or stub.code != 200:
                    self._reply(stub.encode(stub._status), None if stub.has_watch else 404)
                    return
                self.send_response(200)
                self.end_headers()
                seen = -1
                with contextlib.suppress(OSError):
                    while number > stub._ended:
                        status = stub._answer(seen, WATCH_LINE_SECONDS[0], number)
                        stub.answers.wait(30)
                        line = stub._line(status) if status.sequence > seen else b""
                        self.wfile.write(line + b"\n")
                        seen = status.sequence

            def do_PUT(self) -> None:
                stub.receive(stub.take_desired, self._body())
                self._reply("{}")

            def do_POST(self) -> None:
                stub.receive(stub.take_lost, self._body())
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
        record = recorded("status")
        known = set(record) - {"protocol", "recoveries"}
        given = json.loads(status.model_dump_json(include=known))
        document = {**record, **_cut_down(given, record), "verdict": None}
        return json.dumps(document)

    def decode_desired(self, body: bytes) -> Desired:
        """As release 0.1 does, which refuses fields that it does not know."""
        foreign = set(json.loads(body)) - set(recorded("desired_fields"))
        assert not foreign, f"release 0.1 refuses {foreign}"
        return super().decode_desired(body)


def _cut_down(given: Any, record: Any) -> Any:
    """Without the fields that a former release did not send."""
    if isinstance(given, list) and isinstance(record, list):
        return [_cut_down(one, record[0]) for one in given]
    if not isinstance(given, dict) or not isinstance(record, dict):
        return given
    return {name: _cut_down(given[name], record[name]) for name in given if name in record}
