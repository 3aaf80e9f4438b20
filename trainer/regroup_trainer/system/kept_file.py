"""A small text that outlives the process that writes it, as a restarted container finds it."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from regroup_trainer.system.background import Background

log = logging.getLogger(__name__)


class KeptFile:
    """Writes in a thread, one text at a time; of those that come meanwhile only the newest. It is
    meant for the node's own disk. A power cut may lose the last text. Without a path it keeps
    nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._next: str | None = None
        self._writes = False
        self._failed = False

    def read(self) -> str:
        """What a former process kept; empty when there is nothing that can be read."""
        try:
            return self._path.read_text() if self._path else ""
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            log.warning("cannot read what a former process kept in %s: %s", self._path, error)
            return ""

    def write(self, text: str) -> None:
        """Keep this text soon. Errors are logged, once in a row."""
        if self._path is None:
            return
        with self._lock:
            self._next = text
            begins, self._writes = not self._writes, True
        if begins:
            path = self._path
            Background(lambda: self._write_all(path))

    def _write_all(self, path: Path) -> None:
        while (text := self._take()) is not None:
            try:
                replace_text(path, text)
                self._failed = False
            except OSError as error:
                if not self._failed:
                    log.warning("cannot keep the state in %s: %s", path, error.strerror)
                self._failed = True

    def _take(self) -> str | None:
        """The next text; None: the thread ends."""
        with self._lock:
            text, self._next = self._next, None
            self._writes = text is not None
            return text


def replace_text(path: Path, text: str) -> None:
    """Write a whole file, so that a reader finds the former or the new text, also where another
    process does the same. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)
