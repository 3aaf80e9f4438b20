"""Generation numbers on the volume: a number is used once, whoever claims it. Blocking file I/O; run it in a thread."""

from __future__ import annotations

import os
from pathlib import Path

from regroup_trainer.contract import GenerationNumber


def claim(directory: Path, first: GenerationNumber) -> tuple[GenerationNumber, GenerationNumber | None]:
    """Reserve the first free number of the term from `first` on, by exclusive create of a file.

    Also returns the newest generation of any term that has left a lineage record. Raises OSError when the volume is
    not writable or full.
    """
    lineage = directory / "lineage"
    lineage.mkdir(parents=True, exist_ok=True)
    number = first
    while not _create(lineage / f"{number.term}-{number.n}.claim"):
        number = GenerationNumber(number.term, number.n + 1)
    return number, newest_record(lineage)


def newest_record(lineage: Path) -> GenerationNumber | None:
    """The highest generation with a lineage record; None when there is none."""
    numbers = []
    for path in lineage.glob("*-*.json"):
        term, _, n = path.stem.partition("-")
        if term.isdigit() and n.isdigit():
            numbers.append(GenerationNumber(int(term), int(n)))
    return max(numbers, default=None)


def _create(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True
