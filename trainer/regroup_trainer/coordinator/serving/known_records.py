"""The records of generations that a coordinator process knows, as it sends them. Pure."""

from __future__ import annotations

from regroup_trainer.protocol.coordinator_messages import BeginDifference
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    RecordWanted,
)
from regroup_trainer.protocol.message import FRAME_BYTES
from regroup_trainer.protocol.record_transfer import (
    DIFFERENCE_BYTES,
    RecordPieces,
    difference_of,
)

MOST_KEPT = 4
"""Records. Agents have the newest, or the one before."""


class KnownRecords:
    """Those with the highest numbers."""

    def __init__(self) -> None:
        self._kept: dict[GenerationNumber, RecordPieces] = {}
        self._current: BeginDifference | None = None
        """What was sent last. Its record is kept in any case."""

    def get(self, number: GenerationNumber) -> GenerationRecord | None:
        """None: it is not known, and an agent that has it must be asked."""
        kept = self._kept.get(number)
        return kept.record if kept else None

    def add(self, record: GenerationRecord) -> None:
        """Of a former coordinator."""
        self._kept.setdefault(record.number, RecordPieces(record))
        current = self._current.number if self._current else None
        if len(self._kept) > MOST_KEPT:
            del self._kept[min(number for number in self._kept if number != current)]

    def begin(self, record: GenerationRecord) -> BeginDifference:
        """How the begin of a generation is sent."""
        if self._current is not None and self._current.number == record.number:
            return self._current
        pieces = self._kept.get(record.number) or RecordPieces(record)
        begin = BeginDifference(number=record.number, checksum=pieces.checksum)
        if (parent := self._parent_of(record)) is not None:
            begin = _with_difference(begin, parent, pieces)
        self._kept[record.number], self._current = pieces, begin
        self.add(record)
        return begin

    def _parent_of(self, record: GenerationRecord) -> GenerationRecord | None:
        """The generation that was begun last, or else the newest that agents have shown."""
        older = [number for number in self._kept if number < record.number]
        sent = self._current.number if self._current else None
        if sent is not None and sent in older:
            return self.get(sent)
        return self.get(max(older)) if older else None

    def piece(self, wanted: RecordWanted) -> bytes | None:
        """The answer to an agent, as a frame; None: there is none, since newer generations have
        begun.
        """
        kept = self._kept.get(wanted.number)
        return kept.frame(wanted.piece) if kept else None


def _with_difference(
    whole: BeginDifference, parent: GenerationRecord, pieces: RecordPieces
) -> BeginDifference:
    """Without the difference, where an agent reads less if it asks for the whole record."""
    difference = difference_of(parent, pieces.record)
    begin = whole.model_copy(update={"parent": parent.number, "difference": difference})
    size = len(begin.model_dump_json().encode())
    is_sent = size <= DIFFERENCE_BYTES or size < min(pieces.characters, FRAME_BYTES)
    return begin if is_sent else whole
