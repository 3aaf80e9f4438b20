"""The names of the files that belong to one generation."""

from __future__ import annotations

import pytest

from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.lineage_files import (
    checkpoint_path,
    generation_of,
    history_name,
    lineage_name,
    reservation_name,
    reserved_number,
)

NUMBER = GenerationNumber(2, 17)


def test_names_on_the_volume_never_change() -> None:
    assert [reservation_name(NUMBER), lineage_name(NUMBER), history_name(NUMBER)] == [
        "2-17.claim",
        "2-17.json",
        "2-17.jsonl",
    ]
    assert checkpoint_path(7) == "checkpoints/step-7"


@pytest.mark.parametrize("name", [lineage_name(NUMBER), history_name(NUMBER)])
def test_a_record_names_its_generation(name: str) -> None:
    assert generation_of(name) == NUMBER


@pytest.mark.parametrize("name", [reservation_name(NUMBER), ".2-17.json.99", "2-x.json", "latest"])
def test_other_files_name_no_generation(name: str) -> None:
    assert generation_of(name) is None


def test_a_reservation_names_its_number_and_a_record_none() -> None:
    names = (reservation_name(NUMBER), lineage_name(NUMBER), ".2-17.claim.99")
    assert [reserved_number(name) for name in names] == [NUMBER, None, None]
