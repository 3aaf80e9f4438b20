"""Packages without code, and an index that offers them as PyPI does."""

from __future__ import annotations

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

    def __init__(self, folder: Path, address: str) -> None:
        self._folder = folder
        self._address = address
        super().__init__(address, 0)

    @property
    def url(self) -> str:
        """With a password."""
        return f"http://user:secret@{self._address}:{self._server.server_port}/simple"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        folder = self._folder
        pages = {"/simple/wanted/": b'<a href="/wanted-1.0-py3-none-any.whl">wanted</a>'}

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                file = folder / self.path.rpartition("/")[2]
                body = pages.get(self.path) or (file.read_bytes() if file.is_file() else b"")
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "text/html" if self.path in pages else "x/wheel")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler
