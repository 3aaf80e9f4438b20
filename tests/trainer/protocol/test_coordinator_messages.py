"""What a coordinator sends arrives equal."""

from __future__ import annotations

import pytest

from regroup_trainer.protocol.coordinator_messages import (
    BeginDifference,
    Decide,
    Exit,
    Refused,
    Welcome,
    sent_message,
)
from regroup_trainer.protocol.generation import Decision, GenerationNumber
from regroup_trainer.protocol.record_transfer import difference_of
from tests.support.generations import make_generation

RECORD = make_generation(2, 7)


@pytest.mark.parametrize(
    "message",
    [
        Welcome(term=3),
        Refused(reason="wrong version", final=True),
        BeginDifference(
            number=RECORD.number,
            checksum="x",
            parent=GenerationNumber(2, 6),
            difference=difference_of(make_generation(2, 6), RECORD),
        ),
        Decide(generation=RECORD.number, decision=Decision.LEAVE),
        Exit(code=1, reason="failed"),
    ],
)
def test_a_coordinators_messages_survive_the_wire(message: BeginDifference) -> None:
    assert sent_message.validate_json(message.model_dump_json()) == message
