"""Records of generations with members as a cluster has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    MemberRecord,
    RecordPiece,
    SnapshotNumber,
    SnapshotSource,
)
from regroup_trainer.protocol.record_transfer import RecordPieces
from tests.support.generations import make_generation, make_places


def make_member(n: int, ranks: int = 1) -> MemberRecord:
    """A member with an address of its own."""
    address = f"10.{n // 62500}.{n // 250 % 250}.{n % 250}"
    (place,) = make_places([f"gpu-node-{n:05}.compute.internal"], ranks)
    names = {"member": f"{n:08x}-1111-4222-8333-{n * 7919 % 2**48:012x}", "pod": f"gpt-w{n}-1"}
    reached = {"address": address, "endpoint": f"{address}:8472"}
    return place.model_copy(update={**names, **reached, "index": n})


def make_large(
    n: int,
    members: Sequence[MemberRecord],
    places: tuple[str, ...] = (),
    desired: object = None,
) -> GenerationRecord:
    """A generation of term 1 of these members."""
    ranked, rank = [], 0
    for place in members:
        ranked.append(place.model_copy(update={"first_rank": rank}))
        rank += place.ranks
    number = SnapshotNumber(7, GenerationNumber(1, 1), len(places))
    return make_generation(1, n).model_copy(
        update={
            "members": tuple(ranked),
            "snapshot": SnapshotSource(number=number, places=places) if places else None,
            **({"desired": desired} if desired else {}),
        }
    )


def pieces_of(record: GenerationRecord) -> Iterator[RecordPiece]:
    pieces, position = RecordPieces(record), 0
    while (piece := pieces.piece(position)) is not None:
        yield piece
        position += 1


def with_replacements(
    workers: int, ranks: int, replaced: int = 1
) -> tuple[GenerationRecord, GenerationRecord]:
    """Two generations of a sharded job, between which so many workers were lost and others came."""
    members = [make_member(n, ranks) for n in range(workers)]
    places = tuple(place.endpoint for place in (*members[1:], members[0]) for _ in range(ranks))
    lost, joined = min(17, workers - 1), [make_member(workers + n, ranks) for n in range(replaced)]
    after = [*members[:lost], *members[lost + replaced :], *joined]
    return make_large(1, members, places), make_large(2, after, places)
