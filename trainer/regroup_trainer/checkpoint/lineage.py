"""Which generations a run consists of, and so which checkpoints count. Torch-free.

Fencing happens when reading. Before its first step, a generation durably records what it resumed
from. A checkpoint counts only if no later generation of the lineage resumed below it. A rank of an
abandoned line may still publish something, but nobody will load it.
"""

from __future__ import annotations

import errno
import itertools
import math
from collections.abc import Collection, Iterable
from functools import lru_cache, partial
from pathlib import Path

from pydantic import ValidationError

from regroup_trainer.checkpoint.layout import DataIdentity, Layout, Record
from regroup_trainer.errors import CheckpointError, FencedError
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.lineage_files import LINEAGE_FOLDER, generation_of, lineage_name
from regroup_trainer.system import durable
from regroup_trainer.system.background import Background

_READERS = 16
"""Threads that read records: an open takes milliseconds on a network volume."""


class LineageRecord(Record):
    """A generation that has begun to train."""

    generation: GenerationNumber
    parent: GenerationNumber | None
    """The generation that it continues; None for the first."""
    resumed_from_step: int
    """The number of steps that its first state had completed."""
    from_checkpoint: bool = False
    """Whether that state was read from a checkpoint on the volume."""
    resume: ResumePolicy
    """The resume policy in force. A changed policy is noticed by it, and an unchanged one is not
    applied twice.
    """
    data: DataIdentity


def read(layout: Layout) -> dict[GenerationNumber, LineageRecord]:
    """All generations that ever began. Raises CheckpointError when a record is damaged, OSError."""
    if not layout.lineage.is_dir():
        return {}
    paths = [path for path in layout.lineage.iterdir() if generation_of(path.name)]
    readers = [
        Background(partial(_read_records, paths[number::_READERS]))
        for number in range(min(_READERS, len(paths)))
    ]
    return {record.generation: record for reader in readers for record in reader.result()}


def _read_records(paths: list[Path]) -> list[LineageRecord]:
    return [_read_record(path) for path in paths]


def _read_record(path: Path) -> LineageRecord:
    try:
        record = LineageRecord.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise _damaged(f"{path} is damaged ({error.error_count()} errors)") from error
    number, parent = record.generation, record.parent
    if number != generation_of(path.name):
        raise _damaged(f"{path} is damaged (it is that of generation {number})")
    if parent is not None and parent >= number:  # a circle of parents has no end
        raise _damaged(f"{path} is damaged (its parent, generation {parent}, is not an older one)")
    return record


def _damaged(what: str) -> CheckpointError:
    return CheckpointError(
        f"lineage record {what}, so it is unknown which checkpoints count: restore the file, or "
        "start with an empty directory"
    )


def parent_of(
    numbers: Iterable[GenerationNumber], generation: GenerationNumber
) -> GenerationNumber | None:
    """The newest generation before this one that began.

    Only the volume knows it: the coordinator may not have been reachable for the ranks of that
    generation.
    """
    return max((number for number in numbers if number < generation), default=None)


def chain(
    records: dict[GenerationNumber, LineageRecord], newest: GenerationNumber | None
) -> tuple[LineageRecord, ...]:
    """The lineage that ends with `newest`, oldest first. Raises CheckpointError when a record is
    missing.
    """
    links: list[LineageRecord] = []
    while newest is not None:
        if newest not in records:
            raise _damaged(f"{LINEAGE_FOLDER}/{lineage_name(newest)} is missing")
        links.append(records[newest])
        newest = records[newest].parent
    return tuple(reversed(links))


def ending_with(layout: Layout, generation: GenerationNumber) -> tuple[LineageRecord, ...]:
    """The lineage of a generation that has begun, oldest first. Raises CheckpointError, OSError."""
    own = _read_record(layout.lineage_record(generation))
    return (*up_to(layout, own.parent), own)


def up_to(layout: Layout, newest: GenerationNumber | None) -> tuple[LineageRecord, ...]:
    """The lineage that ends with `newest`, oldest first. It never changes, so that it is read once.
    Raises CheckpointError, OSError.
    """
    if newest is None:
        return ()
    written = layout.lineage_record(newest).stat()
    return _up_to(layout, newest, (written.st_ino, written.st_mtime_ns))


@lru_cache(maxsize=1)
def _up_to(
    layout: Layout, newest: GenerationNumber, _written: tuple[int, int]
) -> tuple[LineageRecord, ...]:
    """`_written` differs where a folder was emptied and numbers begin anew."""
    return chain(read(layout), newest)


def last_steps(lineage: tuple[LineageRecord, ...]) -> dict[GenerationNumber, float]:
    """The newest step of each generation that belongs to the lineage: the oldest from which a later
    one resumed; infinite for the newest generation.
    """
    found: dict[GenerationNumber, float] = {}
    end = math.inf
    for link in reversed(lineage):
        found[link.generation] = end
        end = min(end, link.resumed_from_step)
    return found


def counts(step: int, publisher: GenerationNumber, lineage: tuple[LineageRecord, ...]) -> bool:
    """Whether the checkpoint of `step` that this generation published belongs to the lineage."""
    return step <= last_steps(lineage).get(publisher, -1)


def had_checkpoint(lineage: tuple[LineageRecord, ...]) -> bool:
    """Whether the run has resumed from a checkpoint since it last started from scratch."""
    since = itertools.takewhile(lambda link: link.resumed_from_step > 0, reversed(lineage))
    return any(link.from_checkpoint for link in since)


def newest_committing(
    layout: Layout, generation: GenerationNumber, unused: Collection[GenerationNumber]
) -> GenerationNumber | None:
    """The newest generation before this one that may have committed a step; those that are `unused`
    have not.

    Raises FencedError when a newer generation than this one has begun.
    """
    require_newest(layout, generation)
    return parent_of(begun(layout).difference(unused), generation)


def begun(layout: Layout) -> set[GenerationNumber]:
    """The numbers of all generations that ever began. Raises OSError."""
    return {number for path in layout.lineage.iterdir() if (number := generation_of(path.name))}


def require_newest(layout: Layout, generation: GenerationNumber) -> None:
    """Raises FencedError when a newer generation has begun."""
    newest = max(begun(layout), default=None)
    if newest is not None and newest > generation:
        raise FencedError(f"generation {newest} has begun: generation {generation} is over")


def require_begun(layout: Layout, generation: GenerationNumber) -> None:
    """Raises FileNotFoundError where no generation has begun, though this one has trained: the
    volume is away, and what is there, such as an empty folder below its mount, is another one.

    A lineage without this one is none of that: the generation had its begin in such a folder.
    """
    if not begun(layout):
        why = f"no generation: this is not the folder in which generation {generation} began"
        raise FileNotFoundError(errno.ENOENT, why, str(layout.lineage))


def begin(layout: Layout, record: LineageRecord) -> None:
    """Durably record that a generation begins, in the room that was reserved for it.

    Raises FencedError when it, or a newer one, has begun already; OSError, after which the same
    process may try again.
    """
    number = record.generation
    require_newest(layout, number)
    path, room = layout.lineage_record(number), layout.lineage_room(number)
    try:
        durable.create(path, record.model_dump_json(), room)
    except FileExistsError:
        raise FencedError(
            f"generation {record.generation} has begun before: it cannot begin twice"
        ) from None
