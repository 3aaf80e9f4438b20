"""What a coordinator says, as a test wants it said: the contract's routes on a loopback address.

For tests of the operator where there is no kubelet that could run the real one.
"""

from __future__ import annotations

import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from regroup_trainer.contract import COORDINATOR_PORT, Desired, Lost
from regroup_trainer.job_status import CoordinatorStatus

_addresses = itertools.count(2)


class CoordinatorStub:
    """Answers GET /v1/status with `status`, and keeps what it is told. A context manager."""

    def __init__(self, status: CoordinatorStatus) -> None:
        self.address = f"127.0.83.{next(_addresses)}"
        self.desired: list[Desired] = []
        self.lost: list[Lost] = []
        self.tokens: set[str] = set()
        self._status = status
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer((self.address, COORDINATOR_PORT), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def say(self, **changes: Any) -> None:
        """Change the status."""
        with self._news:
            changes["sequence"] = self._status.sequence + 1
            self._status = self._status.model_copy(update=changes)
            self._news.notify_all()

    def _answer(self, after: int, wait: float) -> CoordinatorStatus:
        with self._news:
            self._news.wait_for(lambda: self._status.sequence > after, timeout=wait)
            return self._status

    def _handler(stub) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                stub.tokens.add(self.headers.get("Authorization", ""))
                query = parse_qs(urlsplit(self.path).query)
                status = stub._answer(int(query["after"][0]), float(query["wait"][0]))
                self._reply(status.model_dump_json())

            def do_PUT(self) -> None:
                stub.desired.append(Desired.model_validate_json(self._body()))
                self._reply("{}")
                stub.say(revision=stub.desired[-1].revision)

            def do_POST(self) -> None:
                stub.lost.append(Lost.model_validate_json(self._body()))
                self._reply("{}")

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                return

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers["Content-Length"]))

            def _reply(self, text: str) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

        return Handler
