"""What ranks write: read from their pipes and passed on line by line, with the rank in front.

A rank's standard output and error are pipes from the first byte on. So whatever writes there gets
the prefix: `print`, `logging`, C code, the processes that a program starts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass

TAIL_BYTES = 1 << 16
"""The end of what a rank writes that is kept, to explain its end."""
_CHUNK = 1 << 16
_LONGEST_LINE = 1 << 14
"""Bytes. A longer line is passed on in pieces."""
_UPDATE_SECONDS = 1.0
"""A progress bar draws itself ten times a second; one drawing a second is passed on."""
IDLE_SECONDS = 1.0
"""The beginning of a line is passed on when so long nothing more of it came."""
_OBJECT, _OF_US = b'{"time": "', b'"logger": "regroup_trainer.rank"'
"""A line of JSON of `rank_log` (`system/log_lines.py`), which has the rank in it."""
_DRAINED = 1 << 20
"""Bytes that are read at most after a rank's end: processes that it started may write on."""


def ignore(_line: bytes) -> None:
    """Nobody looks at the lines."""


@dataclass
class Lines:
    """Splits what a stream gets into lines, and marks each with the prefix.

    A carriage return draws a line anew. Only one drawing a second is passed on, and always the
    last one.
    """

    prefix: Callable[[], bytes]
    on_line: Callable[[bytes], None] = ignore
    """Called with every line and every drawing, without their ends."""
    _pending: bytes = b""
    _drawn: float = 0.0
    """When a drawing was passed on last."""

    @property
    def has_begun(self) -> bool:
        """Whether a line has begun and not ended."""
        return bool(self._pending)

    def feed(self, chunk: bytes, now: float) -> bytes:
        """What can be written when `chunk` has come at `now` (seconds of any clock)."""
        *ended, rest = (self._pending + chunk).split(b"\n")
        out = [self._ended(line) for line in ended]
        *drawings, self._pending = _drawings(rest)
        for drawing in drawings:
            self.on_line(drawing)
        if drawings and now >= self._drawn + _UPDATE_SECONDS:
            self._drawn = now
            out.append(self._marked(drawings[-1]))
        if len(self._pending) >= _LONGEST_LINE:
            out.append(self.flush())
        return b"".join(out)

    def flush(self) -> bytes:
        """The line that has begun, as if it ended here."""
        line, self._pending = self._pending, b""
        return self._ended(line) if line else b""

    def _ended(self, line: bytes) -> bytes:
        drawings = _drawings(line.removesuffix(b"\r"))
        for drawing in drawings:
            self.on_line(drawing)
        return self._marked(drawings[-1])

    def _marked(self, line: bytes) -> bytes:
        is_ours = line.startswith(_OBJECT) and _OF_US in line
        return (b"" if is_ours else self.prefix()) + line + b"\n"


def _drawings(line: bytes) -> list[bytes]:
    """What a line showed one after the other. A return at its very end has drawn nothing yet."""
    *former, last = line.removesuffix(b"\r").split(b"\r")
    return [*filter(None, former), last + (b"\r" if line.endswith(b"\r") else b"")]


@dataclass
class Stream:
    """Standard output or error of a rank: a pipe, and where its lines go."""

    source: int
    """The pipe's reading end, non-blocking."""
    target: int
    """The descriptor that gets the lines."""
    lines: Lines
    tail: bytes = b""
    """The last TAIL_BYTES that the rank wrote."""
    changed: float = 0.0
    """When something came last."""
    is_closed: bool = False

    def pump(self, now: float) -> bool:
        """Pass on what has come; False at the end of the stream."""
        try:
            chunk = os.read(self.source, _CHUNK)
        except BlockingIOError:
            return True
        self._pass_on(chunk, now)
        return bool(chunk)

    def drain(self, now: float) -> None:
        """Pass on all that is there, also the beginning of a line: the rank has ended."""
        if self.is_closed:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(_DRAINED // _CHUNK):
                if not (chunk := os.read(self.source, _CHUNK)):
                    break
                self._pass_on(chunk, now)
        write(self.target, self.lines.flush())

    def pass_on_beginning(self, now: float) -> None:
        """Pass on the beginning of a line that did not go on for IDLE_SECONDS."""
        if self.lines.has_begun and now >= self.changed + IDLE_SECONDS:
            write(self.target, self.lines.flush())

    def close(self) -> None:
        """Pass on the beginning of a line, and close the reading end."""
        write(self.target, self.lines.flush())
        os.close(self.source)
        self.is_closed = True

    def _pass_on(self, chunk: bytes, now: float) -> None:
        self.tail, self.changed = (self.tail + chunk)[-TAIL_BYTES:], now
        write(self.target, self.lines.feed(chunk, now))


def write(target: int, data: bytes) -> None:
    """Write all of it. What cannot be written is lost, so that a full disk stops no rank."""
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(target, data) :]
