"""The agent's end of its template process: starts it, sends orders, receives news."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from regroup_trainer.agent.template_protocol import Order, TemplateNews, template_news

_LINE_BYTES = 1 << 20


class TemplateProcess:
    """A running template.

    `on_news` gets each message, `on_end` is called when the process is gone. `script` starts it in
    an image without our modules (`start`); empty: Python does.
    """

    def __init__(
        self, on_news: Callable[[TemplateNews], None], on_end: Callable[[], None], script: str = ""
    ) -> None:
        self._script = script
        self._on_news = on_news
        self._on_end = on_end
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self, entry: str, directory: Path) -> None:
        """Start it. It sends Ready when its imports are done."""
        ours, theirs = socket.socketpair()
        with theirs:
            safe = ["-P"] if sys.flags.safe_path else []  # as the agent itself was started
            command = [sys.executable, *([self._script] if self._script else [*safe, "-m"])]
            command.append("regroup_trainer.agent.template")
            arguments = ["--control", str(theirs.fileno()), "--parent", str(os.getpid())]
            # exec takes a millisecond, and happens once.
            self._process = subprocess.Popen(  # noqa: ASYNC220
                [*command, *arguments, "--entry", entry, "--directory", str(directory)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_BYTES)
        self._listening = asyncio.create_task(self._listen(reader))

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid if self._process else None

    def order(self, order: Order) -> None:
        """Send an order. It is lost when the template is gone, which `on_end` reports."""
        if self._writer is not None:
            self._writer.write(order.model_dump_json().encode() + b"\n")

    def kill(self) -> None:
        """Kill it, and with it its ranks and store: they die with their parent."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
        if self._listening is not None:
            self._listening.cancel()
        if self._writer is not None:
            self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                self._on_news(template_news.validate_json(line))
        self._on_end()
