"""The files that the configuration names, in an order that is the same on every worker, and their
fingerprint.

Whoever can write to a claim could put a link there in place of a file, and have a job read what is
in its pods alone, such as a token, and keep it on the claim as tokens of text. So in a pod a link
on a volume leads nowhere but to that volume. Links of the root file system are the image's own.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import xxhash

from regroup_trainer.errors import DataError
from regroup_trainer.protocol.message import printable
from regroup_trainer.system.background import note_progress
from regroup_trainer.system.volume_errors import may_pass

_BLOCK = 2**16
_BLOCKS = 64


@dataclass(frozen=True)
class File:
    """A file of samples."""

    name: str
    """Path relative to the configured folder: the same on all workers, wherever the folder is
    mounted.
    """
    path: Path
    size: int
    """Bytes."""
    device: int | None = None
    """Number of the file system on which it must stay; None: any."""

    def read(self) -> bytes:
        """Its content. Raises DataError, OSError."""
        with self.opened() as stream:
            return stream.read()

    @contextmanager
    def opened(self) -> Iterator[FileIO]:
        """The file, to be read. Raises DataError; OSErrors, of what is done with it too, name
        it.
        """
        with naming(self.path), open_file(self.path, self.device) as stream:
            yield stream
        note_progress()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError without a name that is raised within, as a read's, gets that of a file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def open_file(path: Path, device: int | None) -> FileIO:
    """A file that was found on this file system, to be read. Others may have put a link or a pipe
    in its place since. Raises DataError, OSError.
    """
    stream = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", 0)
    try:
        about = os.fstat(stream.fileno())
        _require_file(path, about)
        if device not in (None, about.st_dev):
            raise _elsewhere(path)
    except DataError:
        stream.close()
        raise
    return stream


def device_of(about: os.stat_result) -> int | None:
    """The file system on which a file must stay that is this one now."""
    return about.st_dev if "KUBERNETES_SERVICE_HOST" in os.environ else None


def find(paths: Sequence[str], pattern: str, field: str) -> list[File]:
    """The files at `paths`, and those in folders among them, each folder sorted by name.

    Raises DataError with the configuration's `field` when something is missing; OSError.
    """
    return [file for path in paths for file in _at(Path(path), pattern, field)]


def fingerprint(files: Sequence[File]) -> str:
    """A hash over names, sizes and contents; of a file above 4 MiB, over 64 evenly spread blocks of
    its content.

    So a start takes the same time however large the files are. Raises DataError, OSError.
    """
    digest = xxhash.xxh3_128()
    for file in files:
        digest.update(f"{len(file.name)}:{file.name}:{file.size}:".encode())
        _hash_content(digest, file)
    return digest.hexdigest()


def unreadable(error: OSError) -> DataError:
    """The error for a file that cannot be read, with what to do."""
    file = printable(str(error.filename)) if error.filename else "a file"
    problem = f"{file} cannot be read ({error.strerror or printable(str(error))})"
    return DataError(f"data.paths: {problem}: {_way_out(error)}")


def _way_out(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"make it readable for user {os.getuid()}"
    return "repair its volume" if may_pass(error) else "put it there again, or name another path"


def is_there(path: Path) -> bool:
    """Whether there is something at a path. Raises OSError where its volume does not answer."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _elsewhere(path: Path) -> DataError:
    return DataError(
        f"data.paths: {path} is a link to another file system, which links on a volume must not "
        "be: name the file or folder itself"
    )


def _require_own_links(path: Path) -> None:
    """Raises DataError where a link on a pod's volume leads off it. Any part of the path may be
    one.
    """
    image = device_of(os.stat("/"))  # noqa: PTH116
    if image is None:
        return
    for part in (path, *path.parents):
        if part.is_symlink() and part.parent.stat().st_dev not in (image, part.stat().st_dev):
            raise _elsewhere(part)


def _found(name: str, path: Path) -> File:
    """Raises DataError for a pipe or a device, and for a name that no message can have; OSError."""
    if not _is_text(str(path)):
        raise DataError(
            f"data.paths: {printable(str(path))} has a name that is no UTF-8: rename it"
        )
    about = path.stat()
    _require_file(path, about)
    note_progress()
    return File(name, path, about.st_size, device_of(about))


def _is_text(name: str) -> bool:
    return name == name.encode(errors="replace").decode()


def _require_file(path: Path, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise DataError(f"data.paths: {path} is no file: remove it, or name another path")


def _hash_content(digest: xxhash.xxh3_128, file: File) -> None:
    with file.opened() as stream:
        if file.size <= _BLOCK * _BLOCKS:
            digest.update(stream.read())
            return
        for number in range(_BLOCKS):
            stream.seek((file.size - _BLOCK) * number // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))


def _at(path: Path, pattern: str, field: str) -> list[File]:
    if not is_there(path):
        raise DataError(
            f"{field}: {path} does not exist on this worker: mount it, or name another path"
        )
    _require_own_links(path)
    if path.is_dir():
        found = _below(path, pattern)
        if not found:
            raise DataError(
                f"data.pattern: {pattern!r} matches no file below {path}: choose another pattern "
                "or path"
            )
        return found
    return [_found(path.name, path)]


def _below(root: Path, pattern: str) -> list[File]:
    found: list[str] = []
    for folder, _, files in os.walk(root, onerror=_fail):
        # os.path is ten times as fast here as pathlib.
        matching = fnmatch.filter(files, pattern)
        found += [os.path.join(folder, name) for name in matching]  # noqa: PTH118
    start = len(str(root)) + 1
    described = [_found(name[start:], Path(name)) for name in sorted(found)]
    device = root.stat().st_dev
    for file in described:
        if file.device not in (None, device):  # a link, or another volume below this one
            _require_own_links(file.path)
    return described


def _fail(error: OSError) -> None:
    raise error
