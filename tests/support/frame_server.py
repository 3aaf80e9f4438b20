"""A coordinator that knows nothing but heartbeats: it answers frames as a test wants."""

from __future__ import annotations

import socket
import threading
from http.server import BaseHTTPRequestHandler

from regroup_trainer.system.heartbeat_line import ACCEPTED, Beat, FrameBuffer, Kind
from tests.support.loopback_server import LoopbackServer, QuietHandler


class FrameServer(LoopbackServer):
    """Keeps what arrives. Answers as a coordinator does, while `answers`."""

    def __init__(self) -> None:
        self.answers = True
        self.accepts = threading.Event()
        """Cleared: the handshake does not end."""
        self.accepts.set()
        self.answer = Kind.KNOWN
        self.requests: list[str] = []
        self.frames: list[Beat] = []
        self._lines: list[socket.socket] = []
        super().__init__("127.0.0.1", 0)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def has_frames(self, count: int) -> bool:
        """Whether so many have come."""
        return len(self.frames) >= count

    def drop(self) -> None:
        """Close all connections, as the end of a process does."""
        for line in self._lines:
            line.shutdown(socket.SHUT_RDWR)
        self._lines.clear()

    def serve(self, line: socket.socket) -> None:
        """Take frames until the connection ends."""
        self._lines.append(line)
        self.accepts.wait(60)
        line.sendall(ACCEPTED)
        frames = FrameBuffer()
        while data := line.recv(4096):
            for frame in frames.add(data):
                self.frames.append(frame)
                is_due = frame.wants_answer or self.answer is Kind.UNKNOWN
                if self.answers and is_due:
                    line.sendall(Beat(self.answer, frame.stamp).encode())

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                server.serve(self.connection)
                self.close_connection = True

        return Handler
