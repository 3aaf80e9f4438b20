"""Writes that survive a power cut: first the content, then the name, then its directory."""

from __future__ import annotations

import contextlib
import os
from io import FileIO
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


def create(path: Path, content: str, room: Path | None = None) -> None:
    """Write a whole file that must not exist yet. It takes the place of the file `room`, if there
    is one, so that a full volume can take it (see `reserve_room`).

    Raises FileExistsError when it exists, OSError for other problems. After these, the same process
    may try again: it recognises its own file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    if not _is_same(path, temporary):
        _write(temporary, content, room)
        try:
            # A rename would overwrite; an exclusive open would show half a file.
            path.hardlink_to(temporary)
        except FileExistsError:
            if not _is_same(path, temporary):  # else the answer to the first request was lost
                temporary.unlink()
                raise
    sync(path.parent)
    temporary.unlink()


def append(path: Path, line: str) -> None:
    """Append a line to a file, which is made if it is not there. After half a line, which a full
    volume may leave, it begins on a new one. Raises OSError.
    """
    with path.open("a+b", buffering=0) as file:  # a buffer would be written again upon close
        rest = (_missing_end(file) + line).encode()
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())


def reserve_room(path: Path, size: int) -> None:
    """Make a file of `size` bytes that a later `create` can use. Raises OSError."""
    with path.open("wb") as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())


def _missing_end(file: FileIO) -> str:
    """What the last line of a file lacks to be whole."""
    size = file.seek(0, os.SEEK_END)
    return "\n" if size and os.pread(file.fileno(), 1, size - 1) != b"\n" else ""


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except FileNotFoundError:
        return False


def _write(path: Path, content: str, room: Path | None) -> None:
    """Write a file, over the bytes of `room` if that is there."""
    if room is not None:
        with contextlib.suppress(FileNotFoundError):
            room.rename(path)
    try:
        with path.open("r+" if path.exists() else "w") as file:
            file.write(content)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        if room is None:
            path.unlink(missing_ok=True)
        raise
