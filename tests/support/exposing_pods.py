"""Pods that Prometheus scrapes through a server that stands for `kubectl proxy`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

from demo.targets import Route
from regroup.local.processes import ADDRESS
from tests.support.loopback_server import LoopbackServer, QuietHandler

Json = dict[str, Any]
_PATH = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/:]+):\d+/proxy/metrics")


class PodProxy(LoopbackServer):
    """Answers scrapes of pods, by namespace and name, with their texts. A context manager."""

    def __init__(self, texts: Mapping[tuple[str, str], str]) -> None:
        self._texts = texts
        super().__init__(ADDRESS, 0)
        self.route = Route(f"{ADDRESS}:{self._server.server_port}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        texts = self._texts

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                found = _PATH.fullmatch(self.path)
                body = texts[found[1], found[2]].encode() if found else b""
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


def running(pod: Json, address: str) -> Json:
    """A pod as the API server shows it once it runs at this address."""
    return {**pod, "status": {"phase": "Running", "podIP": address}}
