"""The line between a rank and its agent: reports go up, decisions come down, over a Unix socket, one JSON a line.

This is the rank's end. Nothing here blocks a step: a report is one small write, `poll` reads what is already there.
"""

from __future__ import annotations

import contextlib
import math
import socket
from typing import Protocol

from regroup_trainer.commit_page import CommitPage
from regroup_trainer.contract import Decide, RankReport

PROGRESS_SECONDS = 0.1
"""A rank tells of its steps no more often; the agent tells the coordinator less often still."""


class Sender(Protocol):
    """Takes reports."""

    def send(self, report: RankReport) -> None:
        """Tell the agent. Never raises: a rank without an agent is about to be killed anyway."""


class Channel(Sender, Protocol):
    """What a rank needs of it; tests use a list."""

    def committed(self, step: int, time: float) -> bool:
        """Note a step committed at this wall-clock time; whether a Progress of it shall be sent now."""

    def poll(self) -> list[Decide]:
        """The decisions that have arrived since the last call, oldest first."""


class AgentChannel:
    """A connection to the agent's Unix socket at `path`. Raises OSError when nobody listens there.

    `page` is where the last commit is noted, so that it is known also of a rank that was killed.
    """

    def __init__(self, path: str, page: CommitPage) -> None:
        self._page = page
        self._told_at = -math.inf
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

    def committed(self, step: int, time: float) -> bool:
        """Note a committed step; whether so much time has passed that it shall be told."""
        self._page.write(step, time)
        if 0.0 <= time - self._told_at < PROGRESS_SECONDS:
            return False
        self._told_at = time
        return True

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
