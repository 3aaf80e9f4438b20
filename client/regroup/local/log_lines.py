"""Reads a log that a process is still writing, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

OF_A_RANK = re.compile(r"rank \d+: ")
_MOST = 1 << 20
"""Bytes that are read at once. A longer line is given in pieces."""


@dataclass
class LogLines:
    """The lines of a log, each once."""

    path: Path
    begin: int = 0
    """The byte where the next call begins."""

    def new(self) -> list[str]:
        """Whole lines since the last call, at most 1 MiB of them, without their ends."""
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

    def rest(self) -> Iterator[str]:
        """All whole lines that are left; for a log that nobody writes any more."""
        while lines := self.new():
            yield from lines

    def lines(self, *, has_ended: bool) -> Iterable[str]:
        """The rest where the process that writes has ended, else what is new."""
        return self.rest() if has_ended else self.new()

    def of_ranks(self, *, has_ended: bool) -> Iterator[str]:
        """As `lines`, without the lines that are not a rank's."""
        return (line for line in self.lines(has_ended=has_ended) if OF_A_RANK.match(line))
