"""Packages without code, and an index that offers them as PyPI does."""

from __future__ import annotations

import base64
import zipfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from tests.support.loopback_server import LoopbackServer, QuietHandler


def make_wheel(folder: Path, name: str, *needs: str) -> None:
    """A package without a line of code."""
    record, info = f"{name}-1.0.dist-info/RECORD", f"{name}-1.0.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"]
    metadata += [f"Requires-Dist: {need}\n" for need in needs]
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(f"{info}/METADATA", "".join(metadata))
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(record, f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{record},,\n")


class Index(LoopbackServer):
    """An index of the package `wanted`, whose wheel lies in a folder, at an address of ours."""

    def __init__(self, folder: Path, address: str, asks_for: str = "") -> None:
        """`asks_for`: the password that a request needs; by default it needs none."""
        self._folder = folder
        self._address = address
        self._asks_for = asks_for
        super().__init__(address, 0)

    @property
    def url(self) -> str:
        """With a password."""
        return self.url_with(f"user:{self._asks_for or 'secret'}@")

    def url_with(self, credentials: str = "") -> str:
        """With `user:password@`, or with nothing."""
        return f"http://{credentials}{self._address}:{self._server.server_port}/simple"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        folder = self._folder
        wanted = f"Basic {base64.b64encode(f'user:{self._asks_for}'.encode()).decode()}"
        is_open = not self._asks_for
        pages = {"/simple/wanted/": b'<a href="/wanted-1.0-py3-none-any.whl">wanted</a>'}

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                if not (is_open or self.headers["Authorization"] == wanted):
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", "Basic realm=packages")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                file = folder / self.path.rpartition("/")[2]
                body = pages.get(self.path) or (file.read_bytes() if file.is_file() else b"")
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/html" if self.path in pages else "x/wheel")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler
