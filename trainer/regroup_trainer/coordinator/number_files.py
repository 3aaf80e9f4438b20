"""Reserves generation numbers on the volume. Blocking file I/O: run it in a thread."""

from __future__ import annotations

import os
from pathlib import Path

from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.lineage_files import (
    LINEAGE_FOLDER,
    generation_of,
    reservation_name,
)


def reserve(
    directory: Path, first: GenerationNumber
) -> tuple[GenerationNumber, GenerationNumber | None]:
    """Reserve the first free number of the term from `first` on, by exclusive creation of a file.

    Also returns the newest generation of any term that has a lineage record. Raises OSError when
    the volume is full or not writable.
    """
    lineage = directory / LINEAGE_FOLDER
    lineage.mkdir(parents=True, exist_ok=True)
    number = first
    while not _create(lineage / reservation_name(number)):
        number = GenerationNumber(number.term, number.n + 1)
    return number, _newest_record(lineage)


def _newest_record(lineage: Path) -> GenerationNumber | None:
    numbers = (generation_of(path.name) for path in lineage.iterdir())
    return max((number for number in numbers if number is not None), default=None)


def _create(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True
