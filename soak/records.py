"""What a job wrote to its volume, read without any code of the product.

Known of the format, and stated by docs/design/0004-recovery-in-process.md: `lineage/<t>-<n>.json`
says what a generation resumed from, `history/<t>-<n>.jsonl` has a line for each committed step, and
`history/<t>-<n>.gaps` names steps that had to be left out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Number = tuple[int, int]
"""Term and number of a generation."""


@dataclass(frozen=True)
class Link:
    """A generation that began to train."""

    generation: Number
    parent: Number | None
    resumed_from: int
    batch: int
    """Samples of a step."""
    checkpoint: bool = False
    """Whether its state was read from a checkpoint."""
    time: float = 0.0
    """When it began: seconds since the epoch."""


@dataclass(frozen=True)
class Line:
    """A committed step."""

    generation: Number
    """The one that made it."""
    step: int
    first: int
    count: int
    hash: int
    loss: float | None


@dataclass(frozen=True)
class Stored:
    """A copy of the state: a checkpoint, or a memory snapshot."""

    step: int
    generation: Number
    """The one that made it."""


@dataclass(frozen=True)
class Records:
    """All that a job wrote."""

    links: Mapping[Number, Link]
    lines: Mapping[Number, tuple[Line, ...]]
    """By the generation whose file has them, in the order of the file."""
    gaps: tuple[tuple[int, int], ...] = ()
    """First and last step that was left out."""
    damaged: tuple[str, ...] = field(default=())
    """Lines that nobody can read, except a half-written last one."""


def read(folder: Path) -> Records:
    """The records of a job's folder. Raises OSError, and ValueError for a damaged lineage."""
    links = {link.generation: link for link in map(_link, folder.glob("lineage/*.json"))}
    lines: dict[Number, tuple[Line, ...]] = {}
    damaged: list[str] = []
    for path in sorted(folder.glob("history/*.jsonl")):
        lines[_number(path)] = tuple(_lines(path, damaged))
    gaps = [gap for path in folder.glob("history/*.gaps") for gap in _gaps(path)]
    return Records(links, lines, tuple(sorted(gaps)), tuple(damaged))


def newest_step(folder: Path) -> int | None:
    """The step that was written last; cheap enough to ask each second. None before the first."""
    paths = list(folder.glob("history/*.jsonl"))
    if not paths:
        return None
    newest = max(paths, key=_number)
    with newest.open("rb") as file:
        file.seek(max(0, newest.stat().st_size - 4096))
        for line in reversed(file.read().splitlines()):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, KeyError, TypeError):
                continue
    return None


def checkpoints(folder: Path) -> tuple[Stored, ...]:
    """The published ones. Some may belong to a line that was abandoned."""
    found: list[Stored] = []
    for path in folder.glob("checkpoints/step-*/manifest.json"):
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError
        ):  # being written, deleted
            step = int(path.parent.name.removeprefix("step-"))  # not one with ".tmp-..."
            found.append(Stored(step, _pair(json.loads(path.read_text())["generation"])))
    return tuple(found)


def _number(path: Path) -> Number:
    term, n = path.stem.split("-")
    return int(term), int(n)


def _link(path: Path) -> Link:
    try:
        found = json.loads(path.read_text())
        parent = found["parent"]
        return Link(
            _pair(found["generation"]),
            None if parent is None else _pair(parent),
            int(found["resumed_from_step"]),
            int(found["data"]["global_batch_size"]),
            bool(found.get("from_checkpoint", False)),
            path.stat().st_mtime,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"lineage record {path} is damaged: {error!r}") from error


def _lines(path: Path, damaged: list[str]) -> Iterator[Line]:
    raw = path.read_bytes().splitlines()
    for number, text in enumerate(raw, 1):
        try:
            yield _line(json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            if number < len(raw):
                damaged.append(f"{path.name}, line {number}: {error!r}")


def _line(found: dict[str, Any]) -> Line:
    loss = found["loss"]
    return Line(
        _pair(found["generation"]),
        int(found["step"]),
        int(found["first"]),
        int(found["count"]),
        int(found["hash"]),
        None if loss is None else float(loss),
    )


def _gaps(path: Path) -> Iterator[tuple[int, int]]:
    for text in path.read_text().splitlines():
        try:
            found = json.loads(text)
            yield int(found["first"]), int(found["last"])
        except (ValueError, KeyError, TypeError):
            continue  # half-written: the writer repeats it


def _pair(value: Any) -> Number:
    term, n = value
    return int(term), int(n)
