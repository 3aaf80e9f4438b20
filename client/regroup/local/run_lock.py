"""One `regroup run` at a time in a job's folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from regroup.local.run_folder import explain

LOCK_NAME = ".regroup-run"


class FolderError(Exception):
    """A run cannot have its folder. The message says why, and what to do."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have the folder for one run; it is made where it is missing, with a folder for logs. The lock
    ends with the process, however it ends.

    Raises FolderError where another run has it, or where it cannot be written. A file system that
    has no locks lets every run in.
    """
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise FolderError(explain(error, folder)) from None
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
        raise FolderError(
            f"{folder} is in use by another `regroup run`{process}: wait for its end or stop it, "
            "or give this run a folder of its own with --directory"
        ) from None
    except OSError:
        return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    except OSError as error:
        raise FolderError(explain(error, folder)) from None


def is_held(folder: Path) -> bool:
    """Whether a run has the folder at this moment.

    The kernel's list of locks says it: to try the lock could turn away a run that starts.
    """
    file = folder / LOCK_NAME
    try:
        inode, holder = file.stat().st_ino, file.read_text(errors="replace")
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return False
    # A number of an inode is unique in its file system alone.
    return any(
        words[1] == "FLOCK" and words[4] == holder and words[5].endswith(f":{inode}")
        for words in locks
    )
