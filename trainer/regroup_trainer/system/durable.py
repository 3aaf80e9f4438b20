"""Writes that survive a power cut: first the content, then the name, then its directory."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file, or the names of a directory, to the device. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename within a directory, durably.

    Raises OSError, also when `target` is a directory that is not empty.
    """
    source.rename(target)
    sync(target.parent)


def create(path: Path, content: str) -> None:
    """Write a whole file that must not exist yet.

    Raises FileExistsError when it does, OSError for other problems.
    """
    temporary = _write_beside(path, content)
    try:
        # A rename would overwrite; an exclusive open would show half a file.
        path.hardlink_to(temporary)
    finally:
        temporary.unlink()
    sync(path.parent)


def _write_beside(path: Path, content: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
