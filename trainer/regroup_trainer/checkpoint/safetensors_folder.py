"""Reads a folder of safetensors in Hugging Face's layout. Nothing in it is trusted.

One file is model.safetensors; several have an index that says which weight is in which file. Other
files are ignored, such as those of the original release beside them.

Files are read, never mapped: an error of a mapped file is a SIGBUS, and who waits for one holds the
interpreter's lock.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regroup_trainer.data.files import is_there, naming
from regroup_trainer.errors import DataError
from regroup_trainer.protocol.message import listed, printable, quote, shorten
from regroup_trainer.system.background import note_progress
from regroup_trainer.system.volume_errors import may_pass

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
_MOST_BYTES = {CONFIG: 2**20, INDEX: 2**24}
"""Name of a JSON file -> its largest size. The index of a model of 400 billion has 100 kB."""
_MOST_HEADER_BYTES = 2**24
_MOST_WEIGHTS = 2**17
"""In a folder. A model of 1024 layers, the most that we build, has fewer than 10^4."""
_MOST_LISTED = 5
_MOST_SHOWN = 200
"""Characters of a problem that another library words."""
_TOO_MANY = f"more than {_MOST_WEIGHTS} weights"
_BLOCK_BYTES = 2**22
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True)
class StoredWeight:
    """What the header of a file says of a weight."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    """As safetensors names it: F32, BF16."""
    begin: int
    """Where its values begin in the file."""
    size: int
    """Bytes."""

    def read(self) -> Tensor:
        """Its values, as bytes where their type is not float32, bfloat16 or float16. Raises
        DataError, OSError.
        """
        content = torch.empty(self.size, dtype=torch.uint8)
        left = content.numpy().data
        with opened(self.file) as stream:
            stream.seek(self.begin)
            while left:
                count = stream.readinto(left[:_BLOCK_BYTES])
                if not count:
                    raise _unreadable(self.file, "it has become shorter")
                left = left[count:]
                note_progress()
        dtype = _DTYPES.get(self.dtype)
        return content if dtype is None else content.view(dtype).view(self.shape)


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in config.json or in the index. Raises DataError, OSError."""
    path, most = folder / name, _MOST_BYTES[name]
    with opened(path) as file:
        content = file.read(most + 1)
        if len(content) > most:
            raise _unreadable(path, f"more than {most} bytes")
        document = json.loads(content, object_pairs_hook=_without_duplicates)
    if not isinstance(document, dict):
        raise _unreadable(path, "no JSON object")
    return document


def read_headers(folder: Path) -> dict[str, StoredWeight]:
    """Every weight in the folder. Raises DataError when files and index do not fit together;
    OSError.
    """
    with _reading(folder):
        has_index, has_weights = is_there(folder / INDEX), is_there(folder / WEIGHTS)
    if has_index and has_weights:
        raise DataError(
            f"model.initializeFrom: {folder} has {WEIGHTS} and {INDEX}: remove the one that is not "
            "of this model"
        )
    if not has_index:
        return dict(_headers(folder / WEIGHTS))
    places = _places(folder)
    stored: dict[str, StoredWeight] = {}
    twice: list[str] = []
    for file in sorted(set(places.values())):
        for name, weight in _headers(folder / file):
            if name in stored:
                twice.append(f"{name} in {stored[name].file.name} and {file}")
            stored[name] = weight
        if len(stored) + len(twice) > _MOST_WEIGHTS:
            raise _unreadable(folder / INDEX, f"its files have {_TOO_MANY}")
    elsewhere = [
        name
        for name in places.keys() | stored.keys()
        if not _is_at(stored.get(name), places.get(name))
    ]
    require_none(
        folder, {"weights in two files": twice, "weights not where the index says": elsewhere}
    )
    return stored


def require_none(folder: Path, problems: Mapping[str, list[str]]) -> None:
    """Raises DataError with those of the problems that have items."""
    found = [f"{problem}: {_listed(items)}" for problem, items in problems.items() if items]
    if found:
        raise DataError(
            f"model.initializeFrom: {folder}: {'; '.join(found)}: copy the model there again, or "
            "name the folder of another"
        )


def _listed(items: list[str]) -> str:
    first = listed(sorted(items)[:_MOST_LISTED])
    more = len(items) - _MOST_LISTED
    return f"{first} and {more} more" if more > 0 else first


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A file, to be read. Raises DataError when it cannot be, OSError where that may pass."""
    with _reading(path):
        if not (is_there(path) and stat.S_ISREG(path.stat().st_mode)):
            raise _unreadable(path, "no such file, or hidden from this user")
        with path.open("rb") as file:
            yield file


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong within is DataError, but OSErrors of a volume that is away."""
    try:
        with naming(path):
            yield
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        if isinstance(error, OSError) and may_pass(error):
            raise
        raise _unreadable(path, error) from error


def _headers(path: Path) -> Iterator[tuple[str, StoredWeight]]:
    header, start = _read_header(path)
    note_progress()
    for name, weight in header.items():
        begin, end = weight["data_offsets"]
        shape, dtype = tuple(weight["shape"]), weight["dtype"]
        yield name, StoredWeight(path, shape, dtype, start + begin, end - begin)


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """What a file says of its weights, and where the values of the first begin."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = file.read(8)
        wanted = int.from_bytes(length, "little")
        if _MOST_HEADER_BYTES < wanted < size:  # else the library finds what is wrong
            raise _unreadable(
                path, f"its header has {wanted} bytes, more than {_MOST_HEADER_BYTES}"
            )
        content = file.read(min(wanted, _MOST_HEADER_BYTES))
        _check(length + content, size)
        header = json.loads(content)
        header.pop("__metadata__", None)
        if len(header) > _MOST_WEIGHTS:
            raise _unreadable(path, f"it has {_TOO_MANY}")
        return header, 8 + wanted


def _check(head: bytes, size: int) -> None:
    """Have the library check the header of a file of so many bytes. It maps what it opens, so it
    gets a file in memory, with a hole in the place of the values. Raises SafetensorError, OSError.
    """
    with os.fdopen(os.memfd_create("header"), "wb", buffering=0) as copy:
        copy.write(head)
        copy.truncate(size)
        with safe_open(f"/proc/self/fd/{copy.fileno()}", framework="numpy"):
            pass


def _places(folder: Path) -> Mapping[str, str]:
    """Name of a weight -> name of the file that has it."""
    places = read_json(folder, INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise _unreadable(folder / INDEX, "weight_map is no object with weights")
    if len(places) > _MOST_WEIGHTS:
        raise _unreadable(folder / INDEX, f"it names {_TOO_MANY}")
    for weight, file in places.items():
        if not isinstance(file, str) or not _is_beside(file):
            found = quote(file) if isinstance(file, str) else "no name"
            raise _unreadable(
                folder / INDEX,
                f"the file of {shorten(weight)} is {found}, no *.safetensors beside the index",
            )
    return places


def _is_beside(file: str) -> bool:
    """Whether this names a file in the folder itself. Another could be any file of the volume."""
    return Path(file).name == file and file.endswith(".safetensors")


def _is_at(weight: StoredWeight | None, file: str | None) -> bool:
    return weight is not None and weight.file.name == file


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a name is given twice in an object")
    return document


def _unreadable(path: Path, problem: object) -> DataError:
    return DataError(
        f"model.initializeFrom: {printable(str(path))} cannot be read "
        f"({printable(str(problem)[:_MOST_SHOWN])}): copy it there again, or name a folder in "
        "Hugging Face's layout"
    )
