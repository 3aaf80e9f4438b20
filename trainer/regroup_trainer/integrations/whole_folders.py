"""Checkpoints that a library writes, a folder for each: whole, or ignored.

A library writes a folder file by file, from several ranks. A list of its files, with their sizes,
is written last, and durably. A folder without a list, or with other files than those listed, was
interrupted. Nobody loads it, and it is deleted. Links are not followed: what they lead to is no
part of a checkpoint, and is never deleted.

The newest checkpoint is the one that was published last, whatever its step. A run that began anew,
or from an older checkpoint, may find higher steps of an earlier run. It goes on from its own saves,
and the others leave as all old ones do. Each list has a number for this order: clocks of nodes
differ, and a copy of a folder has another time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.environment import DIRECTORY_VARIABLE
from regroup_trainer.system import durable

LIST_FILE = "regroup-files.json"
_LIST_LIMIT = 16 * 2**20
"""Bytes of the longest list that is read: about 200,000 files."""
_NUMBER_LIMIT = 2**53
_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]{0,14})")
_FORMER_RUNS = Path("regroup-runs")


def saves_directory() -> Path:
    """Where the checkpoints of this program belong: in the folder of the job, or else in
    `regroup-runs/<name of the program>` of the working directory.
    """
    given = os.environ.get(DIRECTORY_VARIABLE)
    alone = _FORMER_RUNS / (Path(sys.argv[0]).stem or "program")
    return Path(given or alone).absolute() / "saves"


@dataclass(frozen=True)
class WholeFolders:
    """The checkpoints in a directory. Only rank 0 may change them."""

    directory: Path
    keep_last: int = 3

    def __post_init__(self) -> None:
        if type(self.keep_last) is not int or self.keep_last < 1:
            raise ConfigurationError(f"keep_last: {self.keep_last}: give a whole number, 1 or more")

    def of_step(self, step: int) -> Path:
        """The folder of a step."""
        return self.directory / f"checkpoint-{step}"

    def newest(self) -> Path | None:
        """The newest whole checkpoint."""
        return next(self._whole(), None)

    def begin(self, step: int) -> None:
        """Make room for the folder of a step: what was there is deleted."""
        _discard(self.of_step(step))
        self.directory.mkdir(parents=True, exist_ok=True)

    def publish(self, folder: Path, best: Path | None = None) -> None:
        """Declare a folder whole, once all ranks have written to it, and delete old ones but the
        best.
        """
        paths = list(_files(folder))
        for path in paths:
            durable.sync(path)
        for inside in {path.parent for path in paths} | {folder, folder.parent}:
            durable.sync(inside)
        number = 1 + max((_read_list(other).number for other in self._folders()), default=0)
        (folder / LIST_FILE).unlink(missing_ok=True)
        durable.create(folder / LIST_FILE, json.dumps(_List(number, _sizes(folder))._asdict()))
        for old in list(self._whole())[self.keep_last :]:
            if best is None or old.name != best.name:
                _discard(old)

    def delete_interrupted(self) -> None:
        """Delete what interrupted saves have left."""
        for folder in self._folders():
            if not is_whole(folder):
                _discard(folder)
        for remains in self.directory.glob(".deleted-*"):
            _delete(remains)

    def _whole(self) -> Iterator[Path]:
        """The whole checkpoints, the one that was published last first."""
        by_number = sorted(self._folders(), key=lambda path: _read_list(path).number, reverse=True)
        return filter(is_whole, by_number)

    def _folders(self) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            return [
                path
                for path in self.directory.iterdir()
                if _NAME.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
            ]
        return []


class _List(NamedTuple):
    """What a list file says."""

    number: int
    """Counts the checkpoints that were published in this directory."""
    sizes: dict[str, int]
    """File, relative to the folder -> bytes."""


_NO_LIST = _List(0, {})
"""Stands for one that is missing or cannot be read."""


def is_whole(folder: Path) -> bool:
    """Whether all files of a checkpoint are there, in their full size. There is at least one."""
    listed = _read_list(folder).sizes
    with contextlib.suppress(OSError):
        return bool(listed) and listed == _sizes(folder)
    return False


def _read_list(folder: Path) -> _List:
    try:
        with (folder / LIST_FILE).open("rb") as file:
            found = _List(**json.loads(file.read(_LIST_LIMIT)))
    except (OSError, ValueError, TypeError, RecursionError):
        return _NO_LIST
    is_number = type(found.number) is int and 0 < found.number < _NUMBER_LIMIT
    return found if is_number and isinstance(found.sizes, dict) else _NO_LIST


def _sizes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    """The regular files of a folder but the list, and what a crash has left of writing one."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if LIST_FILE not in path.name and path.is_file() and not path.is_symlink():
                yield path


def _discard(folder: Path) -> None:
    """Delete a folder. It stops being whole at once, however long that takes."""
    if not os.path.lexists(folder):
        return
    remains = folder.with_name(f".deleted-{folder.name}-{secrets.token_hex(8)}")
    durable.rename(folder, remains)
    _delete(remains)


def _delete(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
