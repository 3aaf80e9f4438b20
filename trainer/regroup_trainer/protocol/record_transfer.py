"""How the record of a generation reaches who needs it: as a difference to that of its parent, which
is the same for all, or whole in pieces, for who asks. Pure.

A record names all members, so that its size grows with their number. Sent whole to each of them, it
would be their square. A piece is sent when it is asked for, and an agent asks for one at a time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Final

from regroup_trainer.protocol.coordinator_messages import (
    Begin,
    BeginDifference,
    CoordinatorMessage,
    Exit,
    SentMessage,
)
from regroup_trainer.protocol.generation import (
    MOST_MEMBERS,
    MOST_PIECES,
    MOST_SHARDS,
    PIECE_CHARACTERS,
    GenerationNumber,
    GenerationRecord,
    HolderElsewhere,
    HolderRun,
    MemberRecord,
    MemberRun,
    RecordDifference,
    RecordPiece,
    RecordWanted,
    SnapshotDifference,
    SnapshotSource,
)

RECORD_BYTES: Final = 16 * 1024 * 1024
"""Of the JSON of the largest record: ten thousand workers need a quarter of it."""
DIFFERENCE_BYTES: Final = 32 * 1024
"""Of a begin whose difference is sent in any case: to ask for the record takes a round trip."""
MOST_HELD: Final = 1000
"""Orders that wait for a record. A coordinator sends a handful."""


class RecordError(ValueError):
    """A record cannot be made of what the other side sent."""


def checksum_of(text: bytes) -> str:
    """Of the JSON of a record."""
    return hashlib.blake2b(text, digest_size=16).hexdigest()


# --- differences ----------------------------------------------------------------------------------


def difference_of(parent: GenerationRecord, record: GenerationRecord) -> RecordDifference:
    """What makes `record` of `parent`."""
    return RecordDifference(
        reason=record.reason,
        restored_from=record.restored_from,
        store=record.store,
        failures=record.failures,
        members=tuple(_runs_of(parent.members, record.members)),
        desired=record.desired if record.desired != parent.desired else None,
        snapshot=_snapshot_difference(record) if record.snapshot else None,
    )


def apply_difference(
    parent: GenerationRecord, number: GenerationNumber, difference: RecordDifference
) -> GenerationRecord:
    """The record of generation `number`. Raises RecordError when it does not fit the parent."""
    members = tuple(_in_rank_order(_members_of(parent.members, difference.members)))
    snapshot = difference.snapshot
    return GenerationRecord(
        number=number,
        reason=difference.reason,
        restored_from=difference.restored_from,
        members=members,
        store=difference.store,
        desired=difference.desired or parent.desired,
        snapshot=_snapshot_of(members, snapshot) if snapshot else None,
        failures=difference.failures,
    )


def _runs_of(
    parent: Sequence[MemberRecord], members: Iterable[MemberRecord]
) -> list[MemberRun | MemberRecord]:
    positions = {_identity(place): position for position, place in enumerate(parent)}
    runs: list[MemberRun | MemberRecord] = []
    for place in members:
        position = positions.get(_identity(place))
        last = runs[-1] if runs else None
        if position is None:
            runs.append(place)
        elif isinstance(last, MemberRun) and last.stop == position:
            runs[-1] = MemberRun(last.start, position + 1)
        else:
            runs.append(MemberRun(position, position + 1))
    return runs


def _identity(place: MemberRecord) -> tuple[object, ...]:
    """All but its ranks' numbers, which follow from those before it."""
    own = (place.member, place.index, place.pod, place.node)
    return (*own, place.ranks, place.address, place.endpoint)


def _members_of(
    parent: Sequence[MemberRecord], runs: Iterable[MemberRun | MemberRecord]
) -> list[MemberRecord]:
    members: list[MemberRecord] = []
    for run in runs:
        if isinstance(run, MemberRecord):
            members.append(run)
            continue
        if not 0 <= run.start < run.stop <= len(parent):
            raise RecordError(f"the parent has no members {run.start} to {run.stop}")
        members += parent[run.start : run.stop]
        if len(members) > MOST_MEMBERS:
            raise RecordError(f"a record has at most {MOST_MEMBERS} members")
    return members


def _in_rank_order(members: Iterable[MemberRecord]) -> Iterable[MemberRecord]:
    """Number the ranks through the members."""
    rank = 0
    for place in members:
        is_there = place.first_rank == rank
        yield place if is_there else place.model_copy(update={"first_rank": rank})
        rank += place.ranks


def _snapshot_difference(record: GenerationRecord) -> SnapshotDifference:
    assert record.snapshot is not None
    positions = {place.endpoint: position for position, place in enumerate(record.members)}
    holders: list[HolderRun | HolderElsewhere] = []
    for endpoint, shards in _counted(record.snapshot.places):
        position, last = positions.get(endpoint), holders[-1] if holders else None
        if position is None:
            holders.append(HolderElsewhere(endpoint, shards))
        elif isinstance(last, HolderRun) and _goes_on(last, position, shards):
            holders[-1] = last._replace(members=last.members + 1)
        else:
            holders.append(HolderRun(position, 1, shards))
    return SnapshotDifference(number=record.snapshot.number, holders=tuple(holders))


def _goes_on(run: HolderRun, position: int, shards: int) -> bool:
    return run.shards == shards and run.start + run.members == position


def _counted(places: Iterable[str]) -> list[tuple[str, int]]:
    """Equal places that follow each other, with their number."""
    counted: list[tuple[str, int]] = []
    for place in places:
        before = counted[-1][1] if counted and counted[-1][0] == place else 0
        counted[len(counted) - (before > 0) :] = [(place, before + 1)]
    return counted


def _snapshot_of(members: Sequence[MemberRecord], snapshot: SnapshotDifference) -> SnapshotSource:
    shards = snapshot.number.shards
    if not 0 < shards <= MOST_SHARDS:
        raise RecordError(f"a snapshot of {shards} shards")
    places: list[str] = []
    for run in snapshot.holders:
        endpoints = _endpoints_of(members, run)
        if not 0 < run.shards * len(endpoints) <= shards - len(places):
            raise RecordError(f"the snapshot {snapshot.number} has no shards for {run}")
        for endpoint in endpoints:
            places += [endpoint] * run.shards
    if len(places) != shards:
        raise RecordError(f"{len(places)} of {shards} shards have a place")
    return SnapshotSource(number=snapshot.number, places=tuple(places))


def _endpoints_of(
    members: Sequence[MemberRecord], run: HolderRun | HolderElsewhere
) -> Sequence[str]:
    if isinstance(run, HolderElsewhere):
        return [run.endpoint]
    if not 0 <= run.start < run.start + run.members <= len(members):
        raise RecordError(f"no {run.members} members stand at {run.start}")
    return [place.endpoint for place in members[run.start : run.start + run.members]]


# --- whole records --------------------------------------------------------------------------------


class RecordPieces:
    """A record, to be sent in pieces. It is packed when the first of them is asked for."""

    def __init__(self, record: GenerationRecord) -> None:
        self.record = record
        self._frames: dict[int, bytes] = {}

    @cached_property
    def checksum(self) -> str:
        """Of the record."""
        return checksum_of(self._json())

    @property
    def characters(self) -> int:
        """Of all pieces."""
        return len(self._packed)

    def frame(self, position: int) -> bytes | None:
        """The piece as it is sent. All agents may ask for it, so that it is made once."""
        if position not in self._frames and (piece := self.piece(position)) is not None:
            self._frames[position] = piece.model_dump_json().encode()
        return self._frames.get(position)

    def piece(self, position: int) -> RecordPiece | None:
        """The piece at this position; None: there is none."""
        count = -(-self.characters // PIECE_CHARACTERS)
        if not position < count <= MOST_PIECES:
            return None
        text = self._packed[position * PIECE_CHARACTERS : (position + 1) * PIECE_CHARACTERS]
        return RecordPiece(number=self.record.number, piece=position, pieces=count, text=text)

    @cached_property
    def _packed(self) -> str:
        return base64.b64encode(zlib.compress(self._json())).decode()

    def _json(self) -> bytes:
        return self.record.model_dump_json().encode()


class RecordIntake:
    """A record that arrives in pieces; `checksum`: of its JSON, if it is known."""

    def __init__(self, number: GenerationNumber, checksum: str = "") -> None:
        self.number = number
        self._checksum = checksum
        self._texts: list[str] = []

    @property
    def wanted(self) -> RecordWanted:
        """What to ask for next."""
        return RecordWanted(number=self.number, piece=len(self._texts))

    def add(self, piece: RecordPiece) -> GenerationRecord | None:
        """Take the piece that was asked for; returns the record once it is whole. Raises
        RecordError.
        """
        if piece.number != self.number or piece.piece != len(self._texts):
            raise RecordError(f"piece {piece.piece} of {piece.number} was not asked for")
        self._texts.append(piece.text)
        return self._record() if len(self._texts) >= piece.pieces else None

    def _record(self) -> GenerationRecord:
        text = _unpacked("".join(self._texts))
        if self._checksum and checksum_of(text) != self._checksum:
            raise RecordError(f"the record of {self.number} has another checksum")
        record = GenerationRecord.model_validate_json(text)
        if record.number != self.number:
            raise RecordError(f"it is the record of {record.number} instead of {self.number}")
        return record


def _unpacked(text: str) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(base64.b64decode(text, validate=True), RECORD_BYTES)
    except (binascii.Error, zlib.error) as error:
        raise RecordError(f"a record cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise RecordError(f"a record is not whole, or larger than {RECORD_BYTES} bytes")
    return unpacked


# --- an agent -------------------------------------------------------------------------------------


class OrderReceiver:
    """What an agent makes of what arrives over one connection: orders, in the order in which the
    coordinator gave them. `record` returns the record of the agent's current generation.
    `on_misfit` is called when a difference does not make the record, which is fetched then.

    An order that follows a Begin may be about that generation. So it waits while the agent fetches
    the record, as if the network had been slow. What waits is lost with the connection. An Exit
    waits for nothing.
    """

    def __init__(
        self,
        record: Callable[[], GenerationRecord | None],
        on_misfit: Callable[[GenerationNumber, RecordError], object] = lambda _number, _error: None,
    ) -> None:
        self._record = record
        self._on_misfit = on_misfit
        self._intake: RecordIntake | None = None
        self._held: list[CoordinatorMessage] = []

    def receive(self, message: SentMessage) -> tuple[list[CoordinatorMessage], RecordWanted | None]:
        """The orders to handle now, and what to ask the coordinator for. Raises RecordError."""
        if isinstance(message, RecordPiece):
            return self._on_piece(message)
        if isinstance(message, BeginDifference):
            return self._on_begin(message)
        if isinstance(message, RecordWanted):
            return [], None
        if isinstance(message, Exit) or self._intake is None:
            return [message], None
        if len(self._held) >= MOST_HELD:
            raise RecordError(f"{MOST_HELD} orders wait for the record of {self._intake.number}")
        self._held.append(message)
        return [], None

    def _on_begin(
        self, message: BeginDifference
    ) -> tuple[list[CoordinatorMessage], RecordWanted | None]:
        """What waits for an older generation has no meaning any more."""
        if self._intake is not None and self._intake.number == message.number:
            return [], None
        self._held.clear()
        record = self._by_difference(message)
        if record is not None:
            self._intake = None
            return [Begin(record=record)], None
        self._intake = RecordIntake(message.number, message.checksum)
        return [], self._intake.wanted

    def _by_difference(self, message: BeginDifference) -> GenerationRecord | None:
        """None: the whole record is needed."""
        try:
            return _record_by_difference(self._record(), message)
        except RecordError as error:
            self._on_misfit(message.number, error)
            return None

    def _on_piece(self, piece: RecordPiece) -> tuple[list[CoordinatorMessage], RecordWanted | None]:
        """A piece that was asked for may arrive when a newer generation has begun."""
        if self._intake is None or piece.number != self._intake.number:
            return [], None
        record = self._intake.add(piece)
        if record is None:
            return [], self._intake.wanted
        orders, self._held, self._intake = [Begin(record=record), *self._held], [], None
        return orders, None


def _record_by_difference(
    own: GenerationRecord | None, message: BeginDifference
) -> GenerationRecord | None:
    """None: the agent lacks the parent, or there is no difference. Raises RecordError."""
    if own is None or message.difference is None or own.number != message.parent:
        return own if own is not None and own.number == message.number else None
    record = apply_difference(own, message.number, message.difference)
    if checksum_of(record.model_dump_json().encode()) != message.checksum:
        raise RecordError("it would have another checksum")
    return record
