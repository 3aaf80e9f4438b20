"""Which checkpoints there are, whether they are whole, and which may go. Torch-free."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import xxhash
from pydantic import ValidationError
from pydantic_core import from_json

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.layout import (
    FORMAT,
    MANIFEST,
    FileRecord,
    Head,
    Layout,
    Manifest,
    is_corrupt,
    is_removed,
    published_step,
    set_aside_by,
    temporary_generation,
)
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system import durable
from regroup_trainer.system.background import note_progress
from regroup_trainer.system.volume_errors import is_away, is_of_file

T = TypeVar("T")
H_co = TypeVar("H_co", bound=Head, covariant=True)
_CHUNK_BYTES = 1 << 22
_HEAD_BYTES = 1 << 14
"""Read of a manifest to find its head."""


@dataclass(frozen=True)
class Candidate(Generic[H_co]):
    """A published checkpoint, with its manifest or the reason why that cannot be read."""

    step: int
    path: Path
    manifest: H_co | None
    """Or its head."""
    problem: str = ""


def published(layout: Layout) -> list[Candidate[Manifest]]:
    """All published checkpoints, newest first. Reads their manifests only."""
    return [read_candidate(layout, step) for step in _published_steps(layout)]


def glance(layout: Layout) -> list[Candidate[Head]]:
    """As `published`, in a time that does not grow with the ranks: of a long manifest it reads the
    head, and sees no damage behind that.
    """
    return [_read_head(layout, step) for step in _published_steps(layout)]


def _published_steps(layout: Layout) -> list[int]:
    """Newest first."""
    if not layout.checkpoints.is_dir():
        return []
    found = (published_step(path.name) for path in layout.checkpoints.iterdir())
    return sorted((step for step in found if step is not None), reverse=True)


def _read_head(layout: Layout, step: int) -> Candidate[Head]:
    path = layout.published(step)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        values = from_json(_beginning(path / MANIFEST), allow_partial=True)
        del values["files"]  # what stands before is complete
        head = Head.model_validate(values)
        if head.format == FORMAT and head.step == step:
            return Candidate(step, path, head)
    return read_candidate(layout, step)


def _beginning(path: Path) -> bytes:
    """Of a long file that ends as JSON does. Raises ValueError for another, OSError."""
    with path.open("rb") as file:
        beginning = file.read(_HEAD_BYTES)
        file.seek(max(_HEAD_BYTES, file.seek(0, os.SEEK_END) - 1))
        if file.read() != b"}":
            raise ValueError("a short file, or one that was cut off")
    return beginning


def read_candidate(layout: Layout, step: int) -> Candidate[Manifest]:
    """The published checkpoint of a step. Raises OSError for an error that is not the file's."""
    path = layout.published(step)
    try:
        manifest = Manifest.model_validate_json(_sure((path / MANIFEST).read_bytes, path.parent))
    except FileNotFoundError:
        return Candidate(step, path, None, f"{MANIFEST} is missing")
    except OSError as error:
        if not is_of_file(error):
            raise
        return Candidate(step, path, None, f"{MANIFEST} cannot be read ({error.strerror})")
    except ValidationError as error:
        return Candidate(step, path, None, f"{MANIFEST} is damaged ({error.error_count()} errors)")
    if manifest.format != FORMAT:
        return Candidate(
            step,
            path,
            None,
            f"{MANIFEST} has format {manifest.format}, this version reads {FORMAT}",
        )
    if manifest.step != step:
        return Candidate(step, path, None, f"{MANIFEST} is of step {manifest.step}")
    return Candidate(step, path, manifest)


def on_lineage(
    candidates: Iterable[Candidate[H_co]], links: tuple[lineage.LineageRecord, ...]
) -> list[Candidate[H_co]]:
    """Those that count for the lineage. One with an unreadable manifest does, so that it is
    noticed.
    """
    last = lineage.last_steps(links)
    return [
        found
        for found in candidates
        if found.manifest is None or found.step <= last.get(found.manifest.generation, -1)
    ]


def file_record(path: Path) -> FileRecord:
    """Size and checksum of a file. Raises OSError."""
    digest = xxhash.xxh3_64()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            note_progress()
    return FileRecord(size=size, checksum=digest.hexdigest())


def verify(path: Path, manifest: Manifest, names: Iterable[str]) -> str:
    """Compare files with the manifest; returns the first problem, empty when all are whole. Raises
    OSError where the volume is at fault, or a right is missing: that says nothing about the files.
    """
    for name in names:
        expected = manifest.files[name]
        try:
            found = _sure(partial(file_record, path / name), path.parent)
        except OSError as error:
            if not is_of_file(error):
                raise
            return f"{name} cannot be read ({error.strerror})"
        if found.size != expected.size:
            return f"{name} has {found.size} bytes instead of {expected.size}"
        if found.checksum != expected.checksum:
            return f"{name} has checksum {found.checksum} instead of {expected.checksum}"
    return ""


def _sure(read: Callable[[], T], folder: Path) -> T:
    """What `read` returns. A damaged file gives EIO, and so does a soft NFS mount: there, nothing
    else answers either, and what is raised `is_away`. EIO after an answer is the file's.
    """
    try:
        return read()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        if not _answers(folder):
            raise OSError(errno.ETIMEDOUT, error.strerror, error.filename) from error
    return read()


def _answers(folder: Path) -> bool:
    """Whether a volume answers; that it is full or read-only is an answer."""
    probe = folder / f".probe-answer-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        return error.errno != errno.EIO and not is_away(error)
    return True


def set_aside(path: Path, target: Path) -> Path:
    """Rename durably to `target`, with a number appended where that exists. Returns the new path.
    Raises OSError.
    """
    numbered = (target.with_name(f"{target.name}.{number}") for number in itertools.count(2))
    free = next(name for name in itertools.chain([target], numbered) if not name.exists())
    durable.rename(path, free)
    return free


def has_corrupt(layout: Layout) -> bool:
    """Whether a checkpoint was ever set aside as corrupt."""
    return layout.checkpoints.is_dir() and any(
        is_corrupt(path.name) for path in layout.checkpoints.iterdir()
    )


def removable(steps: Iterable[int], keep_last: int, keep_every_steps: int | None) -> list[int]:
    """The steps whose checkpoints may be deleted: they are neither among the newest nor kept for
    ever.
    """
    older = sorted(steps)[:-keep_last]
    return [step for step in older if not keep_every_steps or step % keep_every_steps]


def sweep(layout: Layout, generation: GenerationNumber) -> None:
    """Remove what older generations were writing or deleting when they ended. Raises OSError.

    An older generation may still be at work. What it publishes is whole; what it writes is swept by
    the next generation.
    """
    for path in list(layout.checkpoints.iterdir()):
        writer = temporary_generation(path.name)
        if is_removed(path.name):
            shutil.rmtree(path, ignore_errors=True)
        elif writer is not None and writer < generation:
            with contextlib.suppress(OSError):
                shutil.rmtree(
                    set_aside(path, layout.removed(path))
                )  # so that nobody sees it with only some of its files


def stale(layout: Layout, generation: GenerationNumber) -> list[Path]:
    """The checkpoints that generations older than this one set aside as of an abandoned line."""
    return [
        path
        for path in layout.checkpoints.iterdir()
        if (by := set_aside_by(path.name)) and by < generation
    ]
