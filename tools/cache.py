"""The cache folder `REGROUP_CACHE`. It holds what a second run need not fetch or build again."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder: `REGROUP_CACHE`, by default ~/.cache/regroup."""
    return Path(os.environ.get("REGROUP_CACHE") or "~/.cache/regroup").expanduser().resolve()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path` while the block runs. Waits until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
