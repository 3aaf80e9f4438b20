"""An agent's part in memory snapshots: holds them, has them copied to a neighbour, and says what it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from regroup_trainer.agent.replication import Keeper, Sender
from regroup_trainer.agent.vault import Vault
from regroup_trainer.contract import (
    GenerationNumber,
    GenerationRecord,
    HeldSnapshot,
    HeldSnapshots,
    SnapshotNumber,
    SnapshotsOff,
    SnapshotTaken,
)

TELL_SECONDS = 0.02
"""News of several shards within so short a time are one message."""


class Snapshots:
    """Of one agent, whose private folder is `directory`. `tell` hears what it holds, when that has changed."""

    def __init__(
        self, directory: Path, member: str, ranks: int, token: str, tell: Callable[[HeldSnapshots | SnapshotsOff], None]
    ) -> None:
        self._member = member
        self._tell = tell
        self._generation: GenerationNumber | None = None
        self._first_rank = 0
        self._telling: asyncio.TimerHandle | None = None
        self._vault = Vault(directory / "snapshots", ranks)
        self._sender = Sender(self._vault, token, self._refused)
        self.keeper = Keeper(self._vault, token, self._is_current, self._changed)

    @property
    def folder(self) -> str:
        """Which its ranks share."""
        return str(self._vault.folder)

    def begin(self, record: GenerationRecord) -> list[int]:
        """Enter a generation; returns the slot that each rank may write first."""
        place = record.place_of(self._member)
        self._generation, self._first_rank = record.number, place.first_rank if place else 0
        self._sender.begin(record, self._member)
        self._changed()
        return self._vault.begin(record)

    def take(self, report: SnapshotTaken) -> None:
        """A rank has written its shard."""
        self._vault.take(report, report.rank - self._first_rank)
        self._sender.send(report.number, report.shard)
        self._changed()

    def complete(self, number: SnapshotNumber) -> None:
        """The coordinator says that a snapshot is complete everywhere."""
        if self._is_current(number):
            self._vault.complete(number)
            self._changed()

    def kept(self) -> tuple[HeldSnapshot, ...]:
        """What is whole here."""
        return self._vault.kept()

    def close(self) -> None:
        """Send nothing more."""
        self._sender.stop()
        if self._telling is not None:
            self._telling.cancel()

    def _is_current(self, number: SnapshotNumber) -> bool:
        return number.generation == self._generation

    def _changed(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell_kept)

    def _tell_kept(self) -> None:
        self._telling = None
        self._tell(HeldSnapshots(snapshots=self.kept()))

    def _refused(self, number: SnapshotNumber, why: str) -> None:
        self._tell(SnapshotsOff(generation=number.generation, rank=self._first_rank, why=why))
