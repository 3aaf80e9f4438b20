"""The memory snapshots of one agent: it holds them, copies them to a neighbour and reports them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from regroup_trainer.agent.replication import SnapshotSender, SnapshotServer
from regroup_trainer.agent.snapshot_store import SnapshotStore
from regroup_trainer.protocol.agent_messages import HeldSnapshot, HeldSnapshots
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, SnapshotNumber
from regroup_trainer.protocol.rank_messages import SnapshotsOff, SnapshotTaken

REPORT_SECONDS = 0.02
"""Changes within so short a time are reported in one message."""


class AgentSnapshots:
    """The snapshots of an agent whose private folder is `directory`.

    `send` gets a HeldSnapshots after each change, and a SnapshotsOff when the neighbour lacks
    memory.
    """

    def __init__(
        self,
        directory: Path,
        member: str,
        ranks: int,
        token: str,
        send: Callable[[HeldSnapshots | SnapshotsOff], None],
    ) -> None:
        self._member = member
        self._send = send
        self._generation: GenerationNumber | None = None
        self._first_rank = 0
        self._reporting: asyncio.TimerHandle | None = None
        self._store = SnapshotStore(directory / "snapshots", ranks)
        self._sender = SnapshotSender(self._store, token, self._refused)
        self.server = SnapshotServer(self._store, token, self._is_current, self._changed)

    @property
    def folder(self) -> str:
        """The folder that its ranks share."""
        return str(self._store.folder)

    def begin(self, record: GenerationRecord) -> list[int]:
        """Enter a generation; returns the slot that each rank may write first."""
        place = record.place_of(self._member)
        self._generation, self._first_rank = record.number, place.first_rank if place else 0
        self._sender.begin(record, self._member)
        self._changed()
        return self._store.begin(record)

    def take(self, report: SnapshotTaken) -> None:
        """A rank has written its shard."""
        self._store.take(report, report.rank - self._first_rank)
        self._sender.send(report.number, report.shard)
        self._changed()

    def complete(self, number: SnapshotNumber) -> None:
        """The coordinator has announced that enough members hold this snapshot. It knows what is
        forgotten here.
        """
        if self._is_current(number):
            self._store.complete(number)

    def held(self) -> tuple[HeldSnapshot, ...]:
        """The shards that are whole here."""
        return self._store.held()

    def close(self) -> None:
        """Send nothing more."""
        self._sender.stop()
        if self._reporting is not None:
            self._reporting.cancel()

    def _is_current(self, number: SnapshotNumber) -> bool:
        return number.generation == self._generation

    def _changed(self) -> None:
        if self._reporting is None:
            self._reporting = asyncio.get_running_loop().call_later(
                REPORT_SECONDS, self._report_held
            )

    def _report_held(self) -> None:
        self._reporting = None
        self._send(HeldSnapshots(snapshots=self.held()))

    def _refused(self, number: SnapshotNumber, why: str) -> None:
        self._send(SnapshotsOff(generation=number.generation, rank=self._first_rank, why=why))
