"""How an agent and its ranks share the memory of snapshots: files in the agent's private folder. Torch-free.

The files are links to memory that the agent holds open: it outlives ranks, and ends with the agent however that ends.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

from pydantic import TypeAdapter

from regroup_trainer.contract import SnapshotFile, SnapshotNumber

TENSORS, REST = "tensors", "rest"
FILES = (TENSORS, REST)
"""What a shard consists of: its tensors, and all else."""
SLOTS = 2
"""Of each rank: while one is written, the other holds the last whole snapshot."""
CHECKSUM_HEADER = "X-Checksum"
_STEP = struct.Struct("q")
_files: TypeAdapter[dict[str, SnapshotFile]] = TypeAdapter(dict[str, SnapshotFile])


def slot_file(folder: Path, local_rank: int, slot: int, name: str) -> Path:
    """Where a rank writes."""
    return folder / f"slot-{local_rank}-{slot}.{name}"


def held_file(folder: Path, number: SnapshotNumber, shard: int, name: str) -> Path:
    """Where a whole shard, own or a neighbour's, is read."""
    return folder / f"held-{number}-{shard}.{name}"


def write_description(folder: Path, number: SnapshotNumber, shard: int, files: Mapping[str, SnapshotFile]) -> None:
    """Say that a shard is whole."""
    held_file(folder, number, shard, "json").write_bytes(_files.dump_json(dict(files)))


def read_description(folder: Path, number: SnapshotNumber, shard: int) -> dict[str, SnapshotFile]:
    """The files of a shard. Raises OSError when it is not held here."""
    return _files.validate_json(held_file(folder, number, shard, "json").read_bytes())


def path_on_agent(number: SnapshotNumber, shard: int, name: str) -> str:
    """Of a file of a shard at an agent's endpoint."""
    return f"/v1/snapshots/{number}/{shard}/{name}"


class CompletePage:
    """The step of the newest snapshot of this generation that is complete everywhere, told by an agent to rank 0.

    A page of memory, since rank 0 looks after every step. Raises OSError when the agent has made none.
    """

    def __init__(self, folder: Path) -> None:
        with (folder / "complete").open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    @property
    def step(self) -> int:
        """0 as long as there is none."""
        return int(_STEP.unpack_from(self._memory)[0])

    @step.setter
    def step(self, step: int) -> None:
        _STEP.pack_into(self._memory, 0, step)
