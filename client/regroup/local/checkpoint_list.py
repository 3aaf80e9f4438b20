"""The checkpoints of a job, as the trainer's own command lists them. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

from regroup_operator.api.status import CheckpointStatus

MODULE = "regroup_trainer.checkpoint"
CHECKPOINTS = "checkpoints"
"""In a job's folder."""
EXPORT_COMMAND = ("export", "--out", "-")
"""Words behind the module: the weights as one file of safetensors, on standard output."""
EXPORT_END = re.compile(r"^step (\d+) blake2b ([0-9a-f]{128})$", re.MULTILINE)
"""What that command writes to standard error at last: the step, and the checksum of the file."""


class SavedCheckpoint(BaseModel):
    """One checkpoint on the volume."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel)

    step: int
    """The step after which it was taken."""
    path: str
    """Its folder, as the workers see it."""
    size_bytes: int | None = None
    """Of all its files; None where its manifest cannot be read."""
    resumable: bool = True
    """Whether the job may resume from it: false for one of a generation that does not count."""
    problem: str = ""
    """What is wrong with it; empty: nothing that its manifest shows."""


_list = TypeAdapter(list[SavedCheckpoint])


def list_command(directory: str) -> list[str]:
    """The words behind the module that list the checkpoints of a job's folder."""
    return ["list", directory, "--json"]


def read_list(text: str) -> list[SavedCheckpoint]:
    """What that command prints: the newest first. Raises ValueError."""
    return _list.validate_json(text)


def directory_of(newest: CheckpointStatus) -> str | None:
    """The job's folder as its workers see it; None before the first checkpoint."""
    return str(PurePosixPath(newest.path).parent.parent) if newest.path else None


def only_newest(newest: CheckpointStatus) -> list[SavedCheckpoint]:
    """What the status alone says."""
    if newest.last_step is None:
        return []
    return [
        SavedCheckpoint.model_validate(
            {"step": newest.last_step, "path": newest.path or "", "sizeBytes": newest.size_bytes}
        )
    ]
