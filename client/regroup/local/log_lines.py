"""Reads a log that a process is still writing, line by line."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_OF_A_RANK = re.compile(r"rank \d+: ")
_MOST_DRAWN = 1 << 14
"""Bytes of the longest drawing."""
_MOST = 1 << 20
"""Bytes that one call reads. A longer line is given in pieces."""


@dataclass
class LogLines:
    """The lines of a log, each once."""

    path: Path
    begin: int = 0
    """The byte where the next call begins."""

    def new(self) -> list[str]:
        """Whole lines since the last call, without their ends."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.begin)
                chunk = file.read(_MOST)
        except OSError:
            return []
        lines, end, _ = chunk.rpartition(b"\n")
        if not end and len(chunk) == _MOST:
            lines = chunk
        self.begin += len(lines) + len(end)
        return lines.decode(errors="replace").split("\n") if lines or end else []

    def last_drawing(self) -> str:
        """What a line that has not ended shows: of a progress bar, the last drawing."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(self.begin, file.seek(0, os.SEEK_END) - _MOST_DRAWN))
                begun = file.read(_MOST_DRAWN)
        except OSError:
            return ""
        *_, last = begun.rpartition(b"\n")
        return last.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")

    def of_ranks(self) -> list[str]:
        """As `new`, without the lines that are not a rank's."""
        return [line for line in self.new() if _OF_A_RANK.match(line)]
