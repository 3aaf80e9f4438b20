"""Checkpoints that a library writes, a folder for each: whole, or ignored.

A library writes a folder file by file, from several ranks. A list of its files, with their sizes,
is written last, and durably. A folder without a list, or with other files than those listed, was
interrupted. Nobody loads it, and it is deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.addresses import DIRECTORY_VARIABLE
from regroup_trainer.system import durable

LIST_FILE = "regroup-files.json"
_LIST_LIMIT = 16 * 2**20
"""Bytes of the longest list that is read: about 200,000 files."""
_NAME = re.compile(r"checkpoint-(\d{1,15})")
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
        if self.keep_last < 1:
            raise ConfigurationError(f"keep_last: {self.keep_last}: give 1 or more")

    def of_step(self, step: int) -> Path:
        """The folder of a step."""
        return self.directory / f"checkpoint-{step}"

    def newest(self) -> Path | None:
        """The newest whole checkpoint."""
        return next((folder for _, folder in self._newest_first() if is_whole(folder)), None)

    def begin(self, step: int) -> Path:
        """An empty folder for a step. What was there is deleted."""
        folder = self.of_step(step)
        _discard(folder)
        folder.mkdir(parents=True)
        return folder

    def publish(self, folder: Path, best: Path | None = None) -> None:
        """Declare a folder whole, once all ranks have written to it, and delete old ones but the
        best.
        """
        paths = list(_files(folder))
        for path in paths:
            durable.sync(path)
        for inside in {path.parent for path in paths} | {folder, folder.parent}:
            durable.sync(inside)
        sizes = {str(path.relative_to(folder)): path.stat().st_size for path in paths}
        durable.create(folder / LIST_FILE, json.dumps(sizes))
        whole = [path for _, path in self._newest_first() if is_whole(path)]
        for old in whole[self.keep_last :]:
            if best is None or old.name != best.name:
                _discard(old)

    def delete_interrupted(self) -> None:
        """Delete what interrupted saves have left."""
        for _, folder in self._newest_first():
            if not is_whole(folder):
                _discard(folder)
        for remains in self.directory.glob(".deleted-*"):
            shutil.rmtree(remains, ignore_errors=True)

    def _newest_first(self) -> list[tuple[int, Path]]:
        with contextlib.suppress(FileNotFoundError):
            found = (
                (int(match[1]), path)
                for path in self.directory.iterdir()
                if (match := _NAME.fullmatch(path.name)) and path.is_dir()
            )
            return sorted(found, reverse=True)
        return []


def is_whole(folder: Path) -> bool:
    """Whether all files of a checkpoint are there, in their full size."""
    try:
        with (folder / LIST_FILE).open("rb") as file:
            sizes = json.loads(file.read(_LIST_LIMIT))
        found = {str(path.relative_to(folder)): path.stat().st_size for path in _files(folder)}
        return bool(found == sizes)
    except (OSError, ValueError, RecursionError):
        return False


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and path.name != LIST_FILE:
            yield path


def _discard(folder: Path) -> None:
    """Delete a folder. It stops being whole at once, however long that takes."""
    if not folder.exists():
        return
    remains = folder.with_name(f".deleted-{folder.name}-{os.getpid()}")
    durable.rename(folder, remains)
    shutil.rmtree(remains, ignore_errors=True)
