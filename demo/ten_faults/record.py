"""What was observed, in a file: so one fault can be tried again, and the page made from all."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from demo.ten_faults.observation import Look, Observed

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

One = TypeVar("One")
Json = dict[str, Any]


def write(file: Path, found: Mapping[str, DataclassInstance]) -> None:
    """Write what was observed of each fault, by its name."""
    plain = {name: dataclasses.asdict(one) for name, one in found.items()}
    file.write_text(json.dumps(plain, indent=2, default=sorted) + "\n")


def read(file: Path) -> dict[str, Observed]:
    """What a file holds; nothing where there is none."""
    return read_each(file, _observed)


def read_each(file: Path, read_one: Callable[[Json], One]) -> dict[str, One]:
    """The same of a file that holds something else."""
    if not file.exists():
        return {}
    return {name: read_one(one) for name, one in json.loads(file.read_text()).items()}


def _observed(plain: Json) -> Observed:
    looks = {part: Look(**plain[part]) for part in ("height", "after")}
    return Observed(**{**plain, **looks, "pending": frozenset(plain["pending"])})
