"""What records and reports cost those who write and read them, by the number of workers.

    make bench NAME=record_transfer [ARGS=--quick]

A case is workers x ranks of each. The model is sharded; one worker is lost, and another comes.

- `pack_ms`, `differ_ms`: what the coordinator does once for a generation: the record in pieces, and
  its difference to the parent.
- `apply_ms`, `unpack_ms`: what each agent does: the record by the difference, or of its pieces.
- `checksum_ms`: of the record, which both compute.
- `record_kb`, `pieces_kb`, `pieces`, `begin_bytes`: how much is sent.

The case `report` is what an agent of eight ranks sends each second:

- `together_us`, `together_bytes`: reading its one message, as the coordinator does.
- `single_us`, `single_bytes`: the same reports in a message of each rank, with all fields, as the
  former protocol had them.
- `json_us`: of the one message, only its JSON; the rest makes and checks objects.

The time is that of the processor, so that other processes matter less.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from pydantic_core import from_json

from bench.harness import Plan, Values, command
from regroup_trainer.agent.outbox import Outbox
from regroup_trainer.coordinator.serving.known_records import KnownRecords
from regroup_trainer.protocol.agent_messages import agent_message
from regroup_trainer.protocol.coordinator_messages import BeginDifference
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, RecordPiece
from regroup_trainer.protocol.rank_messages import Progress
from regroup_trainer.protocol.record_transfer import (
    RecordIntake,
    RecordPieces,
    apply_difference,
    difference_of,
)
from tests.support.large_records import pieces_of, with_replacements

REPORT, RANKS = "report", 8
CASES = (REPORT, "128x8", "1024x8", "4096x8", "10000x8")
QUICK_CASES = (REPORT, "16x8")
UNITS = {
    "pack_ms": "ms", "differ_ms": "ms", "checksum_ms": "ms", "apply_ms": "ms", "unpack_ms": "ms",
    "record_kb": "kB", "pieces_kb": "kB", "pieces": "pieces", "begin_bytes": "B",
    "together_us": "us", "together_bytes": "B", "single_us": "us", "single_bytes": "B",
    "json_us": "us",
}  # fmt: skip
REPEATED = 100
"""Times that a report is read."""


def plan(quick: bool) -> Plan:
    """Three runs of each; a quick one has a small record."""
    cases = QUICK_CASES if quick else CASES
    return Plan("record_transfer", cases, ("regroup",), UNITS, 1 if quick else 3)


def measure(case: str, _subject: str) -> Values:
    """One run."""
    if case == REPORT:
        return of_report()
    workers, ranks = map(int, case.split("x"))
    return of_record(*with_replacements(workers, ranks))


def of_record(parent: GenerationRecord, record: GenerationRecord) -> Values:
    """What a record costs that differs from this parent by one worker."""
    pieces, sent = list(pieces_of(record)), begin(parent, record)
    return {
        "pack_ms": cpu_ms(lambda: RecordPieces(record).piece(0)),
        "differ_ms": cpu_ms(lambda: difference_of(parent, record).model_dump_json()),
        "checksum_ms": cpu_ms(lambda: RecordPieces(record).checksum),
        "apply_ms": cpu_ms(lambda: applied(parent, sent)),
        "unpack_ms": cpu_ms(lambda: unpacked(record.number, pieces)),
        "record_kb": len(record.model_dump_json()) / 1e3,
        "pieces_kb": sum(len(piece.text) for piece in pieces) / 1e3,
        "pieces": len(pieces),
        "begin_bytes": len(sent),
    }


def begin(parent: GenerationRecord, record: GenerationRecord) -> str:
    """The message that begins a generation."""
    known = KnownRecords()
    known.add(parent)
    return known.begin(record).model_dump_json()


def applied(parent: GenerationRecord, sent: str) -> GenerationRecord:
    """The record by the difference."""
    message = BeginDifference.model_validate_json(sent)
    assert message.difference is not None
    return apply_difference(parent, message.number, message.difference)


def unpacked(number: GenerationNumber, pieces: list[RecordPiece]) -> GenerationRecord | None:
    """The record of its pieces."""
    intake = RecordIntake(number)
    return [intake.add(piece) for piece in pieces][-1]


def of_report() -> Values:
    """What a second of eight ranks costs."""
    outbox, reports = Outbox(RANKS), [progress(rank) for rank in range(RANKS)]
    for report in reports:
        outbox.add(report, 0.0)
    message = outbox.take(1.0)
    assert message is not None
    together = message.model_dump_json()
    single = [report.model_dump_json() for report in reports]
    return {
        "together_us": repeated_us(lambda: agent_message.validate_json(together)),
        "together_bytes": len(together),
        "single_us": repeated_us(lambda: [Progress.model_validate_json(one) for one in single]),
        "single_bytes": sum(map(len, single)),
        "json_us": repeated_us(lambda: from_json(together)),
    }


def progress(rank: int) -> Progress:
    """With digits as they come."""
    return Progress(
        generation=GenerationNumber(1, 1),
        rank=rank,
        step=123_456,
        time=1764128000.123456,
        seconds=dict.fromkeys(("step", "wait", "data", "checkpoint"), 15241.578750190521),
        epoch=0.123456789,
        tokens=123_456 * 65_536,
        compute_seconds=0.412345678,
        loss=2.123456789 if rank == 0 else None,
        tokens_per_second=123456.789 if rank == 0 else 0.0,
    )


def cpu_ms(action: Callable[[], object]) -> float:
    """Time of the processor."""
    began = time.process_time()
    action()
    return (time.process_time() - began) * 1e3


def repeated_us(action: Callable[[], object]) -> float:
    """Microseconds of the processor for one of many calls."""
    return cpu_ms(lambda: [action() for _ in range(REPEATED)]) / REPEATED * 1e3


main = command(plan, measure)

if __name__ == "__main__":
    main()
