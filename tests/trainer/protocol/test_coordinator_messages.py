"""What a coordinator sends arrives equal."""

from __future__ import annotations

import pytest

from regroup_trainer.protocol.coordinator_messages import (
    Begin,
    Decide,
    Exit,
    Refused,
    Welcome,
    coordinator_message,
)
from regroup_trainer.protocol.generation import Decision
from tests.support.generations import make_generation

RECORD = make_generation(2, 7)


@pytest.mark.parametrize(
    "message",
    [
        Welcome(term=3),
        Refused(reason="wrong version", final=True),
        Begin(record=RECORD),
        Decide(generation=RECORD.number, decision=Decision.LEAVE),
        Exit(code=1, reason="failed"),
    ],
)
def test_a_coordinators_messages_survive_the_wire(message: Begin) -> None:
    assert coordinator_message.validate_json(message.model_dump_json()) == message
