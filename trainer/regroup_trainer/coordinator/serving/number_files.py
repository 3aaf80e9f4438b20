"""Reserves generation numbers on the volume. Blocking file I/O: run it in a thread.

A number comes with room for the lineage record of its generation, so that the recovery from a
failure needs no more of a volume that is full by then. A coordinator that starts on such a volume
takes over the room of numbers that its predecessors have left unused.
"""

from __future__ import annotations

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
    directory: Path, first: GenerationNumber, own: GenerationNumber | None = None
) -> tuple[GenerationNumber, GenerationNumber | None]:
    """Reserve a number of the term, `first` or one above all that are reserved, by exclusive
    creation of a file, with room for its lineage record. `own` is the first number that the calling
    process has reserved, if it has any.

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
    begun = max(filter(None, map(generation_of, names)), default=None)
    spare = _unused_room(names, begun, own or GenerationNumber(first.term + 1, 0))
    made = lineage / f".room-{first.term}.{os.getpid()}"
    try:
        if spare is None:
            durable.reserve_room(made, ROOM_BYTES)
        number = max(first, newest)
        other = lineage / reservation_name(spare) if spare else None
        while not _create(lineage / reservation_name(number), other):
            number = GenerationNumber(number.term, number.n + 1)
        room = lineage / room_name(spare) if spare else made
        room.rename(lineage / room_name(number))
    except OSError:
        made.unlink(missing_ok=True)
        raise
    return number, begun


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


def _unused_room(
    names: list[str], begun: GenerationNumber | None, end: GenerationNumber
) -> GenerationNumber | None:
    """A number below `end` whose generation will not need its room; None: there is none.

    Former processes have used the lowest numbers first. So the lowest one above all that have
    `begun` may be of a generation that is about to begin.
    """
    numbers = sorted(filter(None, map(room_number, names)))
    later = [number for number in numbers if begun is None or number > begun]
    unused = [number for number in numbers if number < end and number not in later[:1]]
    return min(unused, key=lambda number: (number in later, -number.term, -number.n), default=None)


def _create(path: Path, other: Path | None) -> bool:
    """Make an empty file; False where it exists. A volume that has no room for a further file takes
    it as another name of the empty file `other`. Raises OSError.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    except OSError:
        if other is None:
            raise
        try:
            path.hardlink_to(other)
        except FileExistsError:
            return False
    return True
