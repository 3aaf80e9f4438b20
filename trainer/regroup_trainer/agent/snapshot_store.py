"""The memory for snapshots that an agent holds: those of its ranks, and copies for a neighbour.

The memory consists of files without a name. They outlive the ranks and end with the agent, however
it ends. On a tmpfs they would stay behind, and that file system would limit them. Ranks open them
by links in the agent's private folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regroup_trainer.protocol.agent_messages import HeldSnapshot
from regroup_trainer.protocol.generation import GenerationRecord, SnapshotNumber
from regroup_trainer.protocol.rank_messages import SnapshotFile, SnapshotTaken
from regroup_trainer.snapshots.places import (
    FILES,
    SLOTS,
    CompletePage,
    held_file,
    slot_file,
    write_description,
)


@dataclass(frozen=True)
class Slot:
    """Memory for one shard: a descriptor for each of its files."""

    descriptors: Mapping[str, int]

    @classmethod
    def make(cls) -> Slot:
        """An empty slot."""
        return cls({name: os.memfd_create(f"snapshot-{name}") for name in FILES})

    def path(self, name: str) -> Path:
        """The path by which this process and its ranks open a file."""
        return Path(f"/proc/{os.getpid()}/fd/{self.descriptors[name]}")


@dataclass(frozen=True)
class HeldShard:
    """A shard that is whole."""

    slot: Slot
    files: Mapping[str, SnapshotFile]


class SnapshotStore:
    """All snapshots of one agent, shared with its ranks through `folder`.

    A snapshot is held until a newer one is complete, or a generation begins that does not name it.
    """

    def __init__(self, folder: Path, ranks: int) -> None:
        folder.mkdir()
        self.folder = folder
        self._own = {
            (rank, number): Slot.make() for rank in range(ranks) for number in range(SLOTS)
        }
        self._free: list[Slot] = []
        self._held: dict[tuple[SnapshotNumber, int], HeldShard] = {}
        for (rank, number), slot in self._own.items():
            for name in FILES:
                slot_file(folder, rank, number, name).symlink_to(slot.path(name))
        (folder / "complete").write_bytes(bytes(os.sysconf("SC_PAGESIZE")))
        self._complete = CompletePage(folder)

    def begin(self, record: GenerationRecord) -> list[int]:
        """Enter a generation; returns the slot that each rank may write first."""
        self._complete.step = 0
        pinned = record.snapshot.number if record.snapshot else None
        for key in [key for key in self._held if key[0] != pinned]:
            self._forget(key)
        taken = [held.slot for held in self._held.values()]
        ranks = len(self._own) // SLOTS
        return [
            next(n for n in range(SLOTS) if self._own[rank, n] not in taken)
            for rank in range(ranks)
        ]

    def take(self, report: SnapshotTaken, local_rank: int) -> None:
        """A rank has written its shard."""
        held = HeldShard(self._own[local_rank, report.slot], report.files)
        self.add(report.number, report.shard, held)

    def acquire(self) -> Slot:
        """Memory for a neighbour's shard. Give it back by `add` or `release`."""
        return self._free.pop() if self._free else Slot.make()

    def release(self, slot: Slot) -> None:
        """The shard of this slot did not become whole."""
        self._free.append(slot)

    def complete(self, number: SnapshotNumber) -> None:
        """This snapshot is complete: what is older may be overwritten."""
        for key in [key for key in self._held if key[0].is_older(number)]:
            self._forget(key)
        self._complete.step = number.step

    def get(self, number: SnapshotNumber, shard: int) -> HeldShard | None:
        """A shard; None when it is not held here."""
        return self._held.get((number, shard))

    def held(self) -> tuple[HeldSnapshot, ...]:
        """All shards that are held here, by snapshot."""
        numbers = sorted({number for number, _ in self._held})
        shards = {
            number: sorted(shard for of, shard in self._held if of == number) for number in numbers
        }
        return tuple(
            HeldSnapshot(number=number, shards=tuple(shards[number])) for number in numbers
        )

    def add(self, number: SnapshotNumber, shard: int, held: HeldShard) -> None:
        """Hold a shard that is whole now."""
        for key in [
            key
            for key, other in self._held.items()
            if other.slot is held.slot or key == (number, shard)
        ]:
            self._forget(key, reuse=self._held[key].slot is not held.slot)
        self._held[number, shard] = held
        for name in FILES:
            held_file(self.folder, number, shard, name).symlink_to(held.slot.path(name))
        write_description(self.folder, number, shard, held.files)

    def _forget(self, key: tuple[SnapshotNumber, int], reuse: bool = True) -> None:
        held = self._held.pop(key)
        if reuse and held.slot not in self._own.values():
            self._free.append(held.slot)
        for name in (*FILES, "json"):
            with contextlib.suppress(FileNotFoundError):
                held_file(self.folder, *key, name).unlink()
