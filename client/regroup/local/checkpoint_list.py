"""The checkpoints of a job, as the trainer's own command lists them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.alias_generators import to_camel

from regroup_operator.api.status import CheckpointStatus
from regroup_trainer.protocol.message import printable

MODULE = "regroup_trainer.checkpoint"
LIST_COMMAND = ("list", "--json")
"""Words behind the module, without the folder: all checkpoints, the newest first."""
EXPORT_COMMAND = ("export", "--out", "-")
"""Words behind the module: the weights as one file of safetensors, on standard output."""
_EXPORT_END = re.compile(r"^step (\d+) blake2b ([0-9a-f]{128})$", re.MULTILINE)
"""What that command writes to standard error at last: the step, and the checksum of the file."""
_VERIFIED = re.compile(r"^step (\d+): (whole|damaged)(?:: (.*)| \(.*)?$")
"""What `verify` prints of each checkpoint."""
MOST_SHOWN = 500
"""Characters of what a program says."""


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


@dataclass(frozen=True)
class Verification:
    """What became of one checkpoint that was compared with its checksums."""

    step: int
    whole: bool
    problem: str
    """What is wrong with it; empty for a whole one."""


_list = TypeAdapter(list[SavedCheckpoint])


def list_command(directory: str) -> list[str]:
    """The words behind the module that list the checkpoints of a job's folder."""
    return ["list", directory, "--json"]


def worker_command(command: Sequence[str], directory: str) -> list[str]:
    """The same in a worker's pod, whose main container has this command."""
    return [*command[:-1], MODULE, *list_command(directory)]


def exported_step(stderr: str, checksum: str) -> str | None:
    """The step that an export wrote; None unless its checksum is the one of what has come."""
    found = _EXPORT_END.findall(stderr)
    return str(found[-1][0]) if found and found[-1][1] == checksum else None


def error_of(stderr: str, exit_code: int) -> str:
    """What one of these commands says of its failure, in a line."""
    words = " ".join(stderr.rpartition("Error: ")[2].split())
    return printable(words[:MOST_SHOWN]) or f"exit code {exit_code}"


def read_verifications(lines: Iterable[str]) -> list[Verification]:
    """What the lines of `verify` say; others are passed over."""
    found = filter(None, map(_VERIFIED.match, lines))
    return [Verification(int(one[1]), one[2] == "whole", one[3] or "") for one in found]


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
