"""The line between a rank and its agent: reports go up, decisions come down, over a Unix socket, one JSON a line.

This is the rank's end. Nothing here blocks a step: a report is one small write, `poll` reads what is already there.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

from regroup_trainer.contract import Decide, RankReport


class Channel(Protocol):
    """What the training loop needs of it; tests use a list."""

    def send(self, report: RankReport) -> None:
        """Tell the agent. Never raises: a rank without an agent is about to be killed anyway."""

    def poll(self) -> list[Decide]:
        """The decisions that have arrived since the last call, oldest first."""


class AgentChannel:
    """A connection to the agent's Unix socket at `path`. Raises OSError when nobody listens there."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._pending = b""

    def send(self, report: RankReport) -> None:
        """Tell the agent."""
        with contextlib.suppress(OSError):
            self._socket.sendall(report.model_dump_json().encode() + b"\n")

    def poll(self) -> list[Decide]:
        """The decisions that have arrived since the last call, oldest first."""
        while chunk := self._read():
            self._pending += chunk
        *lines, self._pending = self._pending.split(b"\n")
        return [Decide.model_validate_json(line) for line in lines]

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _read(self) -> bytes:
        try:
            return self._socket.recv(65536, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionError):
            return b""
