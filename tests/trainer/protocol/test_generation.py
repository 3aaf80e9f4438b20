"""Numbers of generations, and the places of members and ranks."""

from __future__ import annotations

from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.protocol.generation import GenerationNumber
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello

NUMBER = GenerationNumber(2, 7)


def test_generation_numbers_compare_by_term_first() -> None:
    assert GenerationNumber(2, 1) > GenerationNumber(1, 99)
    assert GenerationNumber.parse(str(NUMBER)) == NUMBER


def test_ranks_are_numbered_through_the_members() -> None:
    members = (make_hello(0), make_hello(1, ranks=2))
    record = make_record(NUMBER, members, make_desired(), ("Nothing", "first"))
    assert [(place.first_rank, place.ranks) for place in record.members] == [(0, 1), (1, 2)]
    assert record.world_size == 3
    assert record.store == "10.0.0.0:3000"
