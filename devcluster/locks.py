"""Locks between processes, as files: released by the kernel when their holder ends, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from devcluster.progress import Say, silent


@contextmanager
def locked(file: Path, what: str, say: Say = silent) -> Iterator[None]:
    """Hold the lock `file`; `say` tells the user when another process works on `what` meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process works on {what}: waiting for it")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
