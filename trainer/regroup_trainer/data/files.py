"""The files that the configuration names, in an order that is the same on every worker, and what identifies them."""

from __future__ import annotations

import fnmatch
import os
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from regroup_trainer.errors import DataError

_NOT_TEXT_OF_THE_LIBRARY = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"})
"""Folders of the standard library that differ between installations, or repeat each other."""
_BLOCK = 2**16
_BLOCKS = 64


@dataclass(frozen=True)
class File:
    """A file of samples."""

    name: str
    """Relative to the folder that was configured: the same on all workers, wherever that is mounted."""
    path: Path
    size: int
    """Bytes."""


def library(pattern: str) -> list[File]:
    """The sources of Python's own library. Raises DataError."""
    return _below(Path(sysconfig.get_paths()["stdlib"]), pattern, _NOT_TEXT_OF_THE_LIBRARY)


def find(paths: Sequence[str], pattern: str, field: str) -> list[File]:
    """The files at `paths`, and those below where a path is a folder, each folder sorted by name.

    Raises DataError, naming the configuration's `field`, when something is missing or unreadable.
    """
    return [file for path in paths for file in _at(Path(path), pattern, field)]


def fingerprint(files: Sequence[File]) -> str:
    """A hash over names, sizes and contents; of a file above 4 MiB over 64 blocks, spread evenly, of its content.

    So a start costs the same however large the files are. Raises DataError.
    """
    digest = xxhash.xxh3_128()
    for file in files:
        digest.update(f"{len(file.name)}:{file.name}:{file.size}:".encode())
        try:
            _hash_content(digest, file)
        except OSError as error:
            raise unreadable(error) from error
    return digest.hexdigest()


def unreadable(error: OSError) -> DataError:
    """Says which file cannot be read, and for whom."""
    problem = f"{error.filename} cannot be read ({error.strerror})"
    return DataError(f"data.paths: {problem}: make it readable for user {os.getuid()}")


def _hash_content(digest: xxhash.xxh3_128, file: File) -> None:
    with file.path.open("rb", buffering=0) as stream:
        if file.size <= _BLOCK * _BLOCKS:
            digest.update(stream.read())
            return
        for number in range(_BLOCKS):
            stream.seek((file.size - _BLOCK) * number // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))


def _at(path: Path, pattern: str, field: str) -> list[File]:
    if path.is_dir():
        found = _below(path, pattern)
        if not found:
            raise DataError(f"data.pattern: {pattern!r} matches no file below {path}: choose another pattern or path")
        return found
    if not path.exists():
        raise DataError(f"{field}: {path} does not exist on this worker: mount it, or name another path")
    return [File(path.name, path, path.stat().st_size)]


def _below(root: Path, pattern: str, skipped_folders: frozenset[str] = frozenset()) -> list[File]:
    found: list[str] = []
    for folder, folders, files in os.walk(root, onerror=_fail):
        folders[:] = [name for name in folders if name not in skipped_folders]  # os.walk goes on with what is left
        found += [os.path.join(folder, name) for name in fnmatch.filter(files, pattern)]  # noqa: PTH118 - 10x faster
    start = len(str(root)) + 1
    try:
        return [File(name[start:], Path(name), os.stat(name).st_size) for name in sorted(found)]  # noqa: PTH116 - too
    except OSError as error:
        raise unreadable(error) from error


def _fail(error: OSError) -> None:
    raise unreadable(error) from error
