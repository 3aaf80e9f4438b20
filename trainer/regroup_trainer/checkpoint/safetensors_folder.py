"""Reads a folder of safetensors in Hugging Face's layout. Nothing in it is trusted.

One file is model.safetensors; several have an index that says which weight is in which file. Other
files are ignored, such as those of the original release beside them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from regroup_trainer.errors import DataError
from regroup_trainer.protocol.message import listed, printable, quote, shorten

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


@dataclass(frozen=True)
class StoredWeight:
    """What the header of a file says of a weight."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    """As safetensors names it: F32, BF16."""


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in config.json or in the index. Raises DataError."""
    path, most = folder / name, _MOST_BYTES[name]
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for some names
        raise _unreadable(path, "no such file, or hidden from this user")
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise _unreadable(path, f"more than {most} bytes")
        document = json.loads(content, object_pairs_hook=_without_duplicates)
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(document, dict):
        raise _unreadable(path, "no JSON object")
    return document


def read_headers(folder: Path) -> dict[str, StoredWeight]:
    """Every weight in the folder. Raises DataError when files and index do not fit together."""
    has_index, has_weights = (folder / INDEX).exists(), (folder / WEIGHTS).exists()
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
def opened(path: Path) -> Iterator[Any]:
    """A file of safetensors. Raises DataError when it, or a weight in it, cannot be read."""
    if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises for some names
        raise _unreadable(path, "no such file, or hidden from this user")
    try:
        _require_short_header(path)
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _require_short_header(path: Path) -> None:
    """Raises DataError when the header, which begins with its length, takes long to read."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if _MOST_HEADER_BYTES < size < path.stat().st_size:  # else the library finds what is wrong
        raise _unreadable(path, f"its header has {size} bytes, more than {_MOST_HEADER_BYTES}")


def _headers(path: Path) -> Iterator[tuple[str, StoredWeight]]:
    with opened(path) as file:
        names = file.keys()
        if len(names) > _MOST_WEIGHTS:
            raise _unreadable(path, f"it has {_TOO_MANY}")
        for name in names:
            weight = file.get_slice(name)
            yield name, StoredWeight(path, tuple(weight.get_shape()), weight.get_dtype())


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
