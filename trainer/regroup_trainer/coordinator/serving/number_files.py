"""Reserves generation numbers on the volume. Blocking file I/O: run it in a thread.

A number comes with room for the lineage record of its generation, so that the recovery from a
failure needs no more of a volume that is full by then.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.lineage_files import (
    HISTORY_FOLDER,
    LINEAGE_FOLDER,
    checkpoint_path,
    generation_of,
    history_name,
    reservation_name,
    reserved_number,
    room_name,
    room_number,
)
from regroup_trainer.system import durable


class SupersededError(Exception):
    """A coordinator of a higher term decides now. Its argument is that term."""


ROOM_BYTES = 4096
"""More than a lineage record has. File systems give whole blocks of about this size anyway."""


def reserve(
    directory: Path, first: GenerationNumber
) -> tuple[GenerationNumber, GenerationNumber | None]:
    """Reserve a number of the term, `first` or one above all that are reserved, by exclusive
    creation of a file, with room for its lineage record.

    Also returns the newest generation of any term that has a lineage record. Raises OSError when
    the volume is full or not writable, and SupersededError when numbers of a higher term are
    reserved; then no number is taken.
    """
    lineage = directory / LINEAGE_FOLDER
    lineage.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in lineage.iterdir()]
    reserved = (reserved_number(name) for name in names)
    newest = max((number for number in reserved if number is not None), default=first)
    if newest.term > first.term:
        raise SupersededError(newest.term)
    _give_back_room(lineage, names, first.term)
    room = lineage / f".room-{first.term}.{os.getpid()}"
    try:
        durable.reserve_room(room, ROOM_BYTES)
        number = max(first, newest)
        while not _create(lineage / reservation_name(number)):
            number = GenerationNumber(number.term, number.n + 1)
        room.rename(lineage / room_name(number))
    except OSError:
        room.unlink(missing_ok=True)
        raise
    numbers = (generation_of(name) for name in names)
    return number, max((found for found in numbers if found is not None), default=None)


def newest_former(directory: Path, term: int) -> tuple[GenerationNumber, int] | None:
    """The newest generation of a term below this one with a lineage record, and the bytes of its
    history; None: there is none. Raises OSError.
    """
    names = [path.name for path in (directory / LINEAGE_FOLDER).iterdir()]
    numbers = (generation_of(name) for name in names)
    former = [number for number in numbers if number is not None and number.term < term]
    if not former:
        return None
    history = directory / HISTORY_FOLDER / history_name(max(former))
    return max(former), history.stat().st_size if history.exists() else 0


def has_checkpoint(directory: Path, step: int) -> bool:
    """Whether a checkpoint of the step was published. Raises OSError."""
    try:
        (directory / checkpoint_path(step)).stat()
    except FileNotFoundError:
        return False
    return True


def _give_back_room(lineage: Path, names: list[str], term: int) -> None:
    """Remove the room of former coordinators. A generation that still needs it finds other room."""
    for name in names:
        number = room_number(name)
        if number is not None and number.term < term:
            with contextlib.suppress(OSError):
                (lineage / name).unlink()


def _create(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True
