"""The record that an agent makes of differences and pieces is the coordinator's, and what does not
make one is refused.
"""

from __future__ import annotations

import base64
import zlib
from random import Random

import pytest
from pydantic import ValidationError

from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS
from regroup_trainer.protocol import record_transfer
from regroup_trainer.protocol.coordinator_messages import (
    Begin,
    BeginDifference,
    CoordinatorMessage,
    Decide,
    Exit,
    LeaveGeneration,
)
from regroup_trainer.protocol.generation import (
    MOST_MEMBERS,
    MOST_PIECES,
    MOST_SHARDS,
    PIECE_CHARACTERS,
    Decision,
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
    SnapshotNumber,
)
from regroup_trainer.protocol.message import FRAME_BYTES, NAME_LIMIT
from regroup_trainer.protocol.record_transfer import (
    MOST_HELD,
    RECORD_BYTES,
    OrderReceiver,
    RecordError,
    RecordIntake,
    RecordPieces,
    apply_difference,
    checksum_of,
    difference_of,
)
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_generation
from tests.support.large_records import make_large, make_member, pieces_of

ELSEWHERE = "10.9.9.9:8472"


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of few members has several pieces."""
    monkeypatch.setattr(record_transfer, "PIECE_CHARACTERS", 200)


def make_begin(record: GenerationRecord, parent: GenerationRecord | None = None) -> BeginDifference:
    """How its begin is sent."""
    return BeginDifference(
        number=record.number,
        checksum=checksum_of(record.model_dump_json().encode()),
        parent=parent.number if parent else None,
        difference=difference_of(parent, record) if parent else None,
    )


# --- differences ----------------------------------------------------------------------------------


def change(random: Random, members: list[MemberRecord], born: int) -> list[MemberRecord]:
    """Members leave, join, move, or have another address."""
    kept = [place for place in members if random.random() < 0.8]
    kept += [make_member(born + n, random.choice([1, 2, 8])) for n in range(random.randrange(3))]
    if random.random() < 0.3:
        random.shuffle(kept)
    if kept and random.random() < 0.2:
        moved = random.randrange(len(kept))
        kept[moved] = kept[moved].model_copy(update={"endpoint": f"10.8.8.{moved}:1"})
    return kept or [make_member(born + 10)]


@pytest.mark.parametrize("seed", range(40))
def test_the_record_made_of_differences_is_the_whole_record(seed: int) -> None:
    """Under loss of messages too: whoever lacks the parent fetches the record."""
    random = Random(seed)
    members = [make_member(n) for n in range(random.randrange(1, 12))]
    sent = make_large(1, members)
    own: list[GenerationRecord | None] = [None, None, sent]
    agents = [OrderReceiver(lambda n=n: own[n]) for n in range(3)]  # type: ignore[misc]
    fetched = 0
    for n in range(2, 30):
        members = change(random, list(sent.members), 100 * n)
        holders = [*members, *[make_member(50_000)] * (random.random() < 0.3)]
        shards = random.choice([0, 1, len(members), 8 * len(members)])
        places = tuple(holders[s * len(holders) // shards].endpoint for s in range(shards))
        desired = make_desired(revision=n) if random.random() < 0.2 else sent.desired
        parent, sent = sent, make_large(n, members, places, desired)
        begin = make_begin(sent, parent)
        begin = BeginDifference.model_validate_json(begin.model_dump_json())
        for position, agent in enumerate(agents):
            if random.random() < 0.2:
                continue  # its connection is down
            orders, wanted = agent.receive(begin)
            fetched += wanted is not None
            for piece in pieces_of(sent) if wanted else ():
                orders, _ = agent.receive(piece)
            assert orders == [Begin(record=sent)]
            own[position] = sent
    assert fetched


def test_one_lost_of_4096_is_a_small_difference_though_all_after_it_have_other_ranks() -> None:
    members = [make_member(n, 8) for n in range(4096)]
    endpoints = [place.endpoint for place in (*members[1:], members[0]) for _ in range(8)]
    before = make_large(1, members, tuple(endpoints))
    joined = make_member(5000, 8)
    after_loss = [*members[:17], *members[18:], joined]
    taken = [joined.endpoint if one == members[17].endpoint else one for one in endpoints]
    record = make_large(2, after_loss, tuple(taken))
    difference = difference_of(before, record)
    assert len(difference.model_dump_json()) < 1024
    assert apply_difference(before, record.number, difference) == record


def test_a_difference_that_does_not_fit_its_parent_is_refused() -> None:
    parent = make_generation(1, 1)
    number = GenerationNumber(1, 2)
    good = difference_of(parent, parent)
    for runs in ([(0, 3)], [(-1, 1)], [(1, 1)], [(2, 1)], [(0, 2)] * (MOST_MEMBERS // 2 + 1)):
        members = tuple(MemberRun(*run) for run in runs)
        with pytest.raises(RecordError):
            apply_difference(parent, number, good.model_copy(update={"members": members}))


@pytest.mark.parametrize(
    ("shards", "holders"),
    [
        (3, [HolderRun(0, 2, 1)]),
        (2, [HolderRun(0, 3, 1)]),
        (2, [HolderRun(-1, 2, 1)]),
        (2, [HolderRun(0, -2, -1)]),
        (2, [HolderRun(0, 2, -1)]),
        (2, [HolderElsewhere(ELSEWHERE, 3)]),
        (2, [HolderElsewhere(ELSEWHERE, 0), HolderRun(0, 2, 1)]),
        (MOST_SHARDS + 1, [HolderElsewhere(ELSEWHERE, MOST_SHARDS + 1)]),
        (2**62, [HolderElsewhere(ELSEWHERE, 2**62)]),
        (0, []),
    ],
)
def test_places_that_no_snapshot_has_are_refused(
    shards: int, holders: list[HolderRun | HolderElsewhere]
) -> None:
    parent = make_generation(1, 1)
    number = SnapshotNumber(7, GenerationNumber(1, 1), shards)

    def apply() -> None:
        snapshot = SnapshotDifference(number=number, holders=tuple(holders))
        wrong = difference_of(parent, parent).model_copy(update={"snapshot": snapshot})
        apply_difference(parent, GenerationNumber(1, 2), wrong)

    with pytest.raises((RecordError, ValidationError)):
        apply()


# --- whole records --------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pieces")
def test_a_record_arrives_in_pieces_that_are_asked_for_one_by_one() -> None:
    record = make_large(1, [make_member(n) for n in range(40)], (ELSEWHERE,))
    pieces = RecordPieces(record)
    intake, asked, arrived = RecordIntake(record.number, pieces.checksum), 0, None
    while arrived is None:
        assert intake.wanted == RecordWanted(number=record.number, piece=asked)
        piece = pieces.piece(asked)
        assert piece is not None
        arrived = intake.add(RecordPiece.model_validate_json(piece.model_dump_json()))
        asked += 1
    assert arrived == record
    assert asked > 5
    assert pieces.piece(asked) is None


def test_the_record_of_ten_thousand_workers_fits_its_bounds() -> None:
    members = [make_member(n, 8) for n in range(10_000)]
    places = tuple(place.endpoint for place in (*members[1:], members[0]) for _ in range(8))
    record = make_large(1, members, places)
    pieces = [*pieces_of(record)]
    assert len(record.model_dump_json()) < RECORD_BYTES / 4
    assert len(pieces) < MOST_PIECES / 4
    assert max(len(piece.model_dump_json()) for piece in pieces) < FRAME_BYTES
    intake = RecordIntake(record.number, RecordPieces(record).checksum)
    assert [intake.add(piece) for piece in pieces][-1] == record


def test_the_largest_job_with_the_longest_names_fits_the_pieces() -> None:
    random = Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789-"

    def name() -> str:
        return "".join(random.choices(letters, k=NAME_LIMIT))

    names = ("member", "pod", "node", "address", "endpoint")
    place = make_member(0, 8)
    members = [
        place.model_copy(update={"index": n, **{field: name() for field in names}})
        for n in range(DEFAULT_MAX_WORKERS)
    ]
    pieces = RecordPieces(make_large(1, members))
    first = pieces.piece(0)
    assert first is not None
    assert pieces.piece(first.pieces - 1) is not None


def piece_of(packed: bytes, **changes: object) -> RecordPiece:
    text = base64.b64encode(packed).decode()
    fields = {"number": GenerationNumber(1, 1), "piece": 0, "pieces": 1, "text": text}
    return RecordPiece.model_validate({**fields, **changes})


RECORD = make_generation(1, 1)
PACKED = zlib.compress(RECORD.model_dump_json().encode())


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (piece_of(PACKED, piece=1, pieces=2), "was not asked for"),
        (piece_of(PACKED, number=GenerationNumber(1, 2)), "was not asked for"),
        (piece_of(b"no zlib"), "cannot be unpacked"),
        (piece_of(PACKED, text="no Base64"), "cannot be unpacked"),
        (piece_of(PACKED[:-5]), "not whole"),
        (piece_of(zlib.compress(bytes(RECORD_BYTES + 1))), "larger than"),
        (piece_of(zlib.compress(b"{}")), "another checksum"),
    ],
)
def test_pieces_that_make_no_record_are_refused(piece: RecordPiece, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        RecordIntake(RECORD.number, RecordPieces(RECORD).checksum).add(piece)


def test_a_record_under_another_number_is_refused() -> None:
    other = make_generation(1, 2)
    (piece,) = pieces_of(other)
    with pytest.raises(RecordError, match=r"instead of 1\.1"):
        RecordIntake(RECORD.number).add(piece.model_copy(update={"number": RECORD.number}))
    with pytest.raises(ValueError, match="number"):
        RecordIntake(RECORD.number).add(piece_of(zlib.compress(b"{}")))


def test_a_record_of_more_members_than_a_job_may_have_is_refused() -> None:
    place = RECORD.members[0]
    large = RECORD.model_copy(update={"members": (place,) * (MOST_MEMBERS + 1)})
    intake = RecordIntake(RECORD.number)
    (piece,) = pieces_of(large)
    with pytest.raises(ValueError, match=f"at most {MOST_MEMBERS} items"):
        intake.add(piece)


@pytest.mark.parametrize(
    "changes",
    [
        {"pieces": MOST_PIECES + 1},
        {"piece": MOST_PIECES},
        {"piece": -1},
        {"text": "x" * (PIECE_CHARACTERS + 1)},
    ],
)
def test_a_piece_has_bounds(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        piece_of(PACKED, **changes)


# --- an agent -------------------------------------------------------------------------------------

SECOND, THIRD = make_generation(1, 2), make_generation(1, 3)
LEAVE = LeaveGeneration(generation=SECOND.number)
STOP = Decide(generation=SECOND.number, decision=Decision.STOP)
EXIT = Exit(code=0, reason="over")


def make_receiver(record: GenerationRecord | None = None) -> OrderReceiver:
    return OrderReceiver(lambda: record)


def test_an_agent_that_has_the_parent_begins_at_once() -> None:
    receiver = make_receiver(RECORD)
    assert receiver.receive(make_begin(SECOND, RECORD)) == ([Begin(record=SECOND)], None)
    assert receiver.receive(LEAVE) == ([LEAVE], None)


def test_an_agent_that_has_the_record_itself_needs_nothing() -> None:
    assert make_receiver(SECOND).receive(make_begin(SECOND)) == ([Begin(record=SECOND)], None)


@pytest.mark.parametrize("own", [None, THIRD])
def test_orders_that_follow_a_begin_wait_for_its_record(own: GenerationRecord | None) -> None:
    receiver = make_receiver(own)
    asked = RecordWanted(number=SECOND.number)
    assert receiver.receive(make_begin(SECOND, RECORD)) == ([], asked)
    assert receiver.receive(STOP) == ([], None)
    assert receiver.receive(make_begin(SECOND, RECORD)) == ([], None), "it is asked for already"
    assert receiver.receive(LEAVE) == ([], None)
    (piece,) = pieces_of(SECOND)
    orders: list[CoordinatorMessage] = [Begin(record=SECOND), STOP, LEAVE]
    assert receiver.receive(piece) == (orders, None)
    assert receiver.receive(EXIT) == ([EXIT], None)


def test_an_agent_that_is_to_exit_waits_for_no_record() -> None:
    """Who is released may never get it."""
    receiver = make_receiver()
    receiver.receive(make_begin(SECOND))
    assert receiver.receive(LEAVE) == ([], None)
    assert receiver.receive(EXIT) == ([EXIT], None)


def test_a_difference_with_another_checksum_is_not_taken() -> None:
    """Whatever went wrong with it: the whole record has the last word."""
    wrong = make_begin(SECOND, RECORD).model_copy(update={"checksum": make_begin(THIRD).checksum})
    orders, wanted = make_receiver(RECORD).receive(wrong)
    assert (orders, wanted) == ([], RecordWanted(number=SECOND.number))


def test_a_difference_that_cannot_be_applied_is_not_taken() -> None:
    begin = make_begin(SECOND, RECORD)
    assert begin.difference is not None
    odd = begin.difference.model_copy(update={"members": (MemberRun(0, 99),)})
    orders, wanted = make_receiver(RECORD).receive(begin.model_copy(update={"difference": odd}))
    assert (orders, wanted) == ([], RecordWanted(number=SECOND.number))


def test_a_newer_generation_ends_the_wait_for_an_older_one() -> None:
    receiver = make_receiver(RECORD)
    receiver.receive(make_begin(SECOND))
    receiver.receive(LEAVE)
    assert receiver.receive(make_begin(THIRD, RECORD)) == ([Begin(record=THIRD)], None)
    (late,) = pieces_of(SECOND)
    assert receiver.receive(late) == ([], None)
    assert receiver.receive(EXIT) == ([EXIT], None)


def test_orders_without_end_do_not_fill_the_memory_of_an_agent() -> None:
    receiver = make_receiver()
    receiver.receive(make_begin(SECOND))
    for _ in range(MOST_HELD):
        receiver.receive(LEAVE)
    with pytest.raises(RecordError, match=f"{MOST_HELD} orders wait"):
        receiver.receive(LEAVE)


def test_a_difference_survives_the_wire() -> None:
    difference = difference_of(RECORD, SECOND)
    assert RecordDifference.model_validate_json(difference.model_dump_json()) == difference
