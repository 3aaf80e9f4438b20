"""File locks between processes. The kernel releases a lock when its holder ends for any reason."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(file: Path, what: str, report: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the lock `file` while the block runs. `report` is called when another process works on
    `what`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if report is not None:
                report(f"waiting for another process, which works on {what}")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
