"""One `regroup run` at a time in a job's folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

LOCK_NAME = ".regroup-run"


class FolderInUseError(Exception):
    """Another run has the folder. The message names both."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have the folder, which exists, for one run. The lock ends with the process, however it ends.

    Raises FolderInUseError where another run has it, and OSError where the lock file cannot be
    made. A file system that has no locks lets every run in.
    """
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
        process = f" (process {holder})" if holder.isdecimal() else ""
        raise FolderInUseError(
            f"{folder} is in use by another `regroup run`{process}: wait for its end or stop it, "
            "or give this run a folder of its own with --directory"
        ) from None
    except OSError:
        return
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
