"""The files by which an agent and its ranks share memory snapshots. Torch-free.

The files lie in the agent's private folder. They are links to memory that the agent holds open. So
the memory outlives the ranks, and ends with the agent however it ends.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter

from regroup_trainer.protocol.generation import SnapshotNumber
from regroup_trainer.protocol.rank_messages import SnapshotFile

TENSORS, REST = "tensors", "rest"
FILES = (TENSORS, REST)
"""The files of a shard: its tensors, and the rest."""
SLOTS = 2
"""Slots of each rank: while one is written, the other holds the last whole snapshot."""
CHECKSUM_HEADER = "X-Checksum"
_STEP = struct.Struct("q")
_files: TypeAdapter[dict[str, SnapshotFile]] = TypeAdapter(dict[str, SnapshotFile])


def slot_file(folder: Path, local_rank: int, slot: int, name: str) -> Path:
    """The file that a rank writes."""
    return folder / f"slot-{local_rank}-{slot}.{name}"


def held_file(folder: Path, number: SnapshotNumber, shard: int, name: str) -> Path:
    """The file of a shard that is whole, the agent's own or a neighbour's."""
    return folder / f"held-{number}-{shard}.{name}"


def write_description(
    folder: Path, number: SnapshotNumber, shard: int, files: Mapping[str, SnapshotFile]
) -> None:
    """Mark a shard as whole, with the sizes and checksums of its files."""
    held_file(folder, number, shard, "json").write_bytes(_files.dump_json(dict(files)))


def read_description(folder: Path, number: SnapshotNumber, shard: int) -> dict[str, SnapshotFile]:
    """The files of a shard. Raises OSError when this agent does not hold it."""
    return _files.validate_json(held_file(folder, number, shard, "json").read_bytes())


def path_on_agent(number: SnapshotNumber, shard: int, name: str) -> str:
    """The path of a shard's file at an agent's HTTP endpoint."""
    return f"/v1/snapshots/{number}/{shard}/{name}"


class CompletePage:
    """The step of the newest complete snapshot of this generation, which an agent shows to rank 0.

    It is a page of shared memory, since rank 0 reads it after every step. Raises OSError when the
    agent has made none.
    """

    def __init__(self, folder: Path) -> None:
        with (folder / "complete").open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    @property
    def step(self) -> int:
        """The step; 0 as long as no snapshot is complete."""
        return int(_STEP.unpack_from(self._memory)[0])

    @step.setter
    def step(self, step: int) -> None:
        _STEP.pack_into(self._memory, 0, step)
