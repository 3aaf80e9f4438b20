"""How many bytes a recovery takes, and which records a coordinator sends."""

from __future__ import annotations

import pytest

from regroup_trainer.coordinator.serving import known_records
from regroup_trainer.coordinator.serving.arrivals import Arrivals
from regroup_trainer.coordinator.serving.known_records import MOST_KEPT, KnownRecords
from regroup_trainer.protocol.agent_messages import HeldSnapshot, HeldSnapshots, Reports
from regroup_trainer.protocol.coordinator_messages import (
    Begin,
    LeaveGeneration,
    SnapshotComplete,
    sent_message,
)
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    RecordWanted,
    SnapshotNumber,
)
from regroup_trainer.protocol.message import FRAME_BYTES, Message
from regroup_trainer.protocol.rank_messages import Parked, Progress, Restored, Retained
from regroup_trainer.protocol.record_transfer import DIFFERENCE_BYTES, OrderReceiver
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_generation
from tests.support.large_records import make_large, make_member, pieces_of, with_replacements
from tests.support.record_wire import Traffic, WireJob

MEGABYTE = 1_000_000
BYTES_AN_AGENT = 3600
"""Of a recovery: its largest part is what eight ranks report."""


def start(workers: int) -> WireJob:
    """A job that has trained."""
    sizes = {"replicas": workers, "max_replicas": workers, "min_replicas": workers}
    job = WireJob(make_desired(**sizes, steps=10_000), step_seconds=1.0)
    for index in range(workers):
        job.add_agent(index)
    job.wait(3.0)
    assert job.step > 0
    return job


def recovery(workers: int) -> Traffic:
    """What is sent from the loss of a worker until all train again with its replacement."""
    job = start(workers)
    lost, number = job.agents[f"uid-{workers // 2}"], job.record.number
    job.traffic = Traffic()
    job.crash(lost)
    job.add_agent(lost.index)
    job.wait(3.0)
    assert job.record.number > number
    assert len(job.record.members) == workers
    return job.traffic


def test_the_bytes_of_a_recovery_grow_with_the_number_of_agents_and_not_its_square() -> None:
    few, many = recovery(64), recovery(256)
    assert many.all < 4.4 * few.all
    assert many.all < 2000 * 256
    assert many.pieces < 5 * few.pieces, "the replacement alone fetches the record"


def test_a_successor_fetches_the_record_from_one_agent() -> None:
    job = start(64)
    number = job.record.number
    job.traffic = Traffic()
    job.start_coordinator(job.term + 1)
    job.wait(1.0)
    assert job.record.number == number
    assert len(job.core.state.members) == 64
    assert len(job.asked) == 1
    assert job.traffic.to_coordinator < 64 * 1500


def sizes_of(*messages: Message | None) -> int:
    return sum(len(message.model_dump_json()) for message in messages if message is not None)


def bytes_of_recovery(workers: int, ranks: int) -> int:
    """All bytes of the messages of a recovery of a sharded job of which one worker is lost."""
    before, after = with_replacements(workers, ranks)
    known, number, shards = KnownRecords(), after.number, workers * ranks
    known.begin(before)
    kept = [Retained(step=99_999, shard=rank, shards=shards) for rank in range(ranks)]
    parked = [
        Parked(generation=number, rank=shards - n, retained=one) for n, one in enumerate(kept)
    ]
    restored = [Restored(generation=number, rank=shards - n, step=99_999) for n in range(ranks)]
    progress = Progress(
        generation=number, rank=shards, step=99_999, time=1764128000.123456, compute_seconds=0.4123
    )
    snapshot = SnapshotNumber(99_999, number, shards)
    held = HeldSnapshot(number=snapshot, shards=tuple(range(shards - 2 * ranks, shards)))
    of_each = sizes_of(
        LeaveGeneration(generation=number),
        known.begin(after),
        SnapshotComplete(number=snapshot),
        *[Reports(reports=tuple(reports)) for reports in (parked, restored, [progress] * ranks)],
        *[HeldSnapshots(snapshots=(held,))] * 2,
    )
    assert of_each < BYTES_AN_AGENT
    return workers * of_each + sizes_of(*pieces_of(after))


@pytest.mark.parametrize(("workers", "megabytes"), [(1024, 5), (4096, 20)])
def test_the_recovery_of_a_large_job_is_a_few_megabytes(workers: int, megabytes: int) -> None:
    assert bytes_of_recovery(workers, 8) < megabytes * MEGABYTE


def fetched(arrivals: Arrivals, receiver: OrderReceiver, begin: bytes) -> tuple[Begin, int]:
    """What an agent makes of a begin, and the bytes of the pieces that it asks for."""
    orders, wanted = receiver.receive(sent_message.validate_json(begin))
    asked = 0
    while wanted is not None:
        frame = arrivals.piece(wanted)
        assert frame is not None
        assert arrivals.piece(wanted) is frame, "it is serialised once"
        asked += len(frame)
        orders, wanted = receiver.receive(sent_message.validate_json(frame))
    (order,) = orders
    assert isinstance(order, Begin)
    return order, asked


def test_where_many_are_replaced_only_the_new_ones_fetch_the_record() -> None:
    workers, replaced = 4096, 170
    before, after = with_replacements(workers, 8, replaced)
    arrivals, order = Arrivals(lambda: None), Begin(record=after)
    arrivals.frame_of(Begin(record=before))
    begin = arrivals.frame_of(order)
    assert len(begin) > DIFFERENCE_BYTES
    assert fetched(arrivals, OrderReceiver(lambda: before), begin) == (order, 0)
    got, of_record = fetched(arrivals, OrderReceiver(lambda: None), begin)
    assert got == order
    assert len(begin) < of_record
    assert workers * len(begin) + replaced * of_record < workers * of_record / 2


# --- the records of a coordinator -----------------------------------------------------------------


def test_the_parent_of_a_generation_is_the_one_that_was_begun_last() -> None:
    known, records = KnownRecords(), [make_generation(1, n) for n in (1, 2, 5)]
    assert known.begin(records[0]).parent is None
    assert known.begin(records[1]).parent == records[0].number
    known.add(make_generation(1, 4))
    known.add(make_generation(1, 9))
    assert known.begin(records[2]).parent == records[1].number


def test_the_first_generation_of_a_successor_has_the_adopted_one_as_its_parent() -> None:
    known = KnownRecords()
    for n in (3, 4, 2):
        known.add(make_generation(1, n))
    assert known.begin(make_generation(2, 1)).parent == GenerationNumber(1, 4)


def test_the_begin_of_a_generation_is_the_same_whenever_it_is_sent() -> None:
    known = KnownRecords()
    known.begin(make_generation(1, 1))
    second = make_generation(1, 2)
    assert known.begin(second) is known.begin(second)


def test_few_records_are_kept_and_the_current_one_in_any_case() -> None:
    known, current = KnownRecords(), make_generation(1, 2)
    known.add(make_generation(1, 1))
    known.begin(current)
    for n in range(2, 3 + MOST_KEPT):
        known.add(make_generation(2, n))
    numbers = [GenerationNumber(1, n) for n in (1, 2)] + [GenerationNumber(2, n) for n in range(9)]
    kept = [number for number in numbers if known.get(number)]
    assert kept == [current.number, *[GenerationNumber(2, 3 + n) for n in range(1, MOST_KEPT)]]
    assert known.piece(RecordWanted(number=current.number)) is not None
    assert known.piece(RecordWanted(number=GenerationNumber(1, 1))) is None


def test_a_difference_that_is_larger_than_the_record_is_left_out() -> None:
    """All workers are others: agents ask for the record when they can take it."""
    known = KnownRecords()
    known.begin(make_large(1, [make_member(n) for n in range(500)]))
    begin = known.begin(make_large(2, [make_member(1000 + n) for n in range(500)]))
    assert (begin.parent, begin.difference) == (None, None)
    begin = known.begin(make_large(3, [make_member(1000 + n) for n in range(400)]))
    assert begin.difference is not None
    assert sizes_of(begin) < DIFFERENCE_BYTES < FRAME_BYTES


def test_a_difference_that_fits_no_message_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = with_replacements(4096, 1, 200)
    for most, is_sent in ((FRAME_BYTES, True), (DIFFERENCE_BYTES + 1024, False)):
        monkeypatch.setattr(known_records, "FRAME_BYTES", most)
        known = KnownRecords()
        known.begin(before)
        assert (known.begin(after).difference is not None) is is_sent
