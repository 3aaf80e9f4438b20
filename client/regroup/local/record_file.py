"""The record of a run in its folder: read by the web page, written by the run."""

from __future__ import annotations

import contextlib
import math
import threading
from dataclasses import dataclass
from pathlib import Path

from regroup.local.run_record import RunRecord

RECORD_NAME = ".regroup-run.json"
MOST_BYTES = 1 << 20
"""Of a record that is read: thousands of workers fit."""
WRITE_SECONDS = 1.0
"""Pause between two records while only the numbers change."""
FINISH_SECONDS = 2.0
"""Of waiting for a folder at the end."""


def read_record(folder: Path) -> RunRecord | None:
    """The record of a folder; None where there is none that can be read."""
    text = read_regular(folder / RECORD_NAME, MOST_BYTES)
    try:
        return RunRecord.model_validate_json(text) if len(text) < MOST_BYTES else None
    except ValueError:  # of another release, or of nobody
        return None


def read_regular(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file; none where it cannot be read, and of a pipe or a device."""
    with contextlib.suppress(OSError):
        if path.is_file():
            with path.open("rb") as file:
                return file.read(most)
    return b""


@dataclass
class RecordWriter:
    """Writes the record of one run, in threads: a folder that refuses costs the run nothing, and
    one that does not answer does not hold it up.
    """

    folder: Path
    _essence: tuple[object, ...] | None = None
    _written_at: float = 0.0
    _work: threading.Thread | None = None

    def begin(self) -> None:
        """Remove what the run before has left."""
        with contextlib.suppress(OSError):
            (self.folder / RECORD_NAME).unlink()

    def write(self, record: RunRecord, now: float) -> None:
        """Replace the file: at once after a change, else each second. `now` is monotonic time."""
        essence = record.report.essence() if record.report else ()
        if essence == self._essence and now - self._written_at < WRITE_SECONDS:
            return
        if self._work is not None and self._work.is_alive():
            return
        self._essence, self._written_at = essence, now
        # A daemon: it must not keep the process when the folder never answers.
        self._work = threading.Thread(target=self._replace, args=(record,), daemon=True)
        self._work.start()

    def finish(self, record: RunRecord) -> None:
        """Write the last one, unless the folder takes seconds."""
        self.join()
        self.write(record, math.inf)
        self.join()

    def join(self) -> None:
        """Wait for what is being written, but not for long."""
        if self._work is not None:
            self._work.join(FINISH_SECONDS)

    def _replace(self, record: RunRecord) -> None:
        temporary = self.folder / f"{RECORD_NAME}.new"
        with contextlib.suppress(OSError):
            temporary.write_text(record.model_dump_json())
            temporary.replace(self.folder / RECORD_NAME)
