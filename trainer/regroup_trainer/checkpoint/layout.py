"""Names and records in a job's directory on the shared volume. Torch-free.

checkpoints/
    step-<N>                      published: manifest.json, the shards, DCP's .metadata
    step-<N>.tmp-<term>-<n>       being written by that generation
    .stale-step-<N>-<term>-<n>    of an abandoned line; set aside by that generation
    .corrupt-step-<N>-<term>-<n>  did not verify; set aside by that generation, kept as evidence
    .removed-<name>               being deleted
    latest                        symbolic link to the newest published one, for people
data-set-read                     what was read of a data set that may be another one

`protocol/lineage_files.py` lists what is in `lineage/` and `history/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from regroup_trainer.protocol.config import Dimensions
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.lineage_files import (
    CHECKPOINTS_FOLDER,
    HISTORY_FOLDER,
    LINEAGE_FOLDER,
    checkpoint_name,
    file_stem,
    gaps_name,
    history_name,
    lineage_name,
    room_name,
)
from regroup_trainer.protocol.message import WallClock

MANIFEST = "manifest.json"
FORMAT = 1
"""To be raised when older code would misread a checkpoint."""


class Record(BaseModel):
    """Base of what is stored: immutable; unknown fields are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataIdentity(Record):
    """What determines the order of samples. A run must not change it half-way."""

    fingerprint: str
    samples: int
    seed: int
    global_batch_size: int
    sequence_length: int


@dataclass(frozen=True)
class RunIdentity:
    """What is trained, as its checkpoints know it."""

    model: dict[str, Any]
    """What must be equal for a checkpoint to fit."""
    strategy: str
    """The parallel strategy; it need not be equal."""
    data: DataIdentity
    is_custom: bool = False
    """Whether this comes from a user's own program and not from a configuration."""


FileName = Annotated[str, Field(pattern=r"^[^/\x00]+$", max_length=255)]
"""A file beside the manifest. A path could lead to any file that a rank may read."""


class FileRecord(Record):
    """One file of a checkpoint."""

    size: int
    checksum: str
    """xxh3_64, hexadecimal."""


class Head(Record):
    """What a manifest says before it lists the files, which may be many."""

    format: int = FORMAT
    step: int
    """Steps completed."""
    position: int
    """Samples consumed."""
    tokens: int
    """Tokens trained on."""
    generation: GenerationNumber
    """The generation that published it."""
    world_size: int
    strategy: str
    model: dict[str, Any]
    """Name and dimensions."""
    data: DataIdentity
    torch: str
    """Version of torch that wrote it."""
    time: WallClock
    """Of the save."""


class Manifest(Head):
    """The contents of a published checkpoint. It is written last: a checkpoint without it is not
    whole.
    """

    files: dict[FileName, FileRecord]

    @property
    def dimensions(self) -> Dimensions:
        """The size of a model of ours. Raises pydantic.ValidationError for that of a user."""
        return Dimensions.model_validate(
            {field: value for field, value in self.model.items() if field != "name"}
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of all files except the manifest."""
        return sum(file.size for file in self.files.values())


_PUBLISHED = re.compile(r"step-(\d+)", re.ASCII)
_TEMPORARY = re.compile(r"step-\d+\.tmp-(\d+)-(\d+)", re.ASCII)
_CORRUPT = re.compile(r"\.corrupt-step-(\d+)-.*", re.ASCII)
_STALE = re.compile(r"\.stale-step-\d+-(\d+)-(\d+)(?:\.\d+)?", re.ASCII)
_REMOVED = ".removed-"


def published_step(name: str) -> int | None:
    """The step of a published checkpoint's directory name, None for any other name."""
    match = _PUBLISHED.fullmatch(name)
    return int(match[1]) if match else None


def temporary_generation(name: str) -> GenerationNumber | None:
    """The generation that writes, or wrote, this temporary directory; None for any other name."""
    match = _TEMPORARY.fullmatch(name)
    return GenerationNumber(int(match[1]), int(match[2])) if match else None


def is_corrupt(name: str) -> bool:
    """Whether this directory was set aside as corrupt."""
    return _CORRUPT.fullmatch(name) is not None


def is_removed(name: str) -> bool:
    """Whether this directory is being deleted."""
    return name.startswith(_REMOVED)


def set_aside_by(name: str) -> GenerationNumber | None:
    """The generation that set this directory aside as of an abandoned line; None for any other
    name.
    """
    match = _STALE.fullmatch(name)
    return GenerationNumber(int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class Layout:
    """Paths below a job's directory."""

    directory: Path

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.directory / CHECKPOINTS_FOLDER

    @property
    def lineage(self) -> Path:
        """The folder of lineage records."""
        return self.directory / LINEAGE_FOLDER

    @property
    def history(self) -> Path:
        """The folder of committed steps."""
        return self.directory / HISTORY_FOLDER

    @property
    def data_set_read(self) -> Path:
        """What a process has read of a data set of which nobody knows whether it is another one."""
        return self.directory / "data-set-read"

    @property
    def latest(self) -> Path:
        """The link to the newest checkpoint."""
        return self.checkpoints / "latest"

    def published(self, step: int) -> Path:
        """The directory of a published checkpoint."""
        return self.checkpoints / checkpoint_name(step)

    def temporary(self, step: int, generation: GenerationNumber) -> Path:
        """The directory into which `generation` writes a checkpoint."""
        return self.checkpoints / f"{checkpoint_name(step)}.tmp-{file_stem(generation)}"

    def stale(self, step: int, generation: GenerationNumber) -> Path:
        """Where `generation` sets aside a checkpoint of an abandoned line."""
        return self.checkpoints / f".stale-{checkpoint_name(step)}-{file_stem(generation)}"

    def corrupt(self, step: int, generation: GenerationNumber) -> Path:
        """Where `generation` sets aside a checkpoint that did not verify."""
        return self.checkpoints / f".corrupt-{checkpoint_name(step)}-{file_stem(generation)}"

    def removed(self, path: Path) -> Path:
        """The name of a directory while it is being deleted."""
        return self.checkpoints / f"{_REMOVED}{path.name}"

    def lineage_record(self, generation: GenerationNumber) -> Path:
        """The generation's lineage record."""
        return self.lineage / lineage_name(generation)

    def lineage_room(self, generation: GenerationNumber) -> Path:
        """The file that keeps room for that record."""
        return self.lineage / room_name(generation)

    def history_file(self, generation: GenerationNumber) -> Path:
        """The generation's committed steps."""
        return self.history / history_name(generation)

    def history_gaps(self, generation: GenerationNumber) -> Path:
        """The steps that had to be left out of that file."""
        return self.history / gaps_name(generation)
