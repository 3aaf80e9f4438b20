"""A condition says why it is what it is, whatever a coordinator or a stored status leaves out."""

from __future__ import annotations

from typing import Literal

import pytest

from regroup_operator.decide.plan import NO_MESSAGE
from regroup_trainer.protocol.job_status import Outcome
from tests.support.operator_simulation import Simulation


@pytest.mark.parametrize("result", ["completed", "failed"])
def test_an_end_that_its_coordinator_does_not_explain_has_a_message_all_the_same(
    result: Literal["completed", "failed"],
) -> None:
    """The simulation looks at the message of each condition in each round."""
    simulation = Simulation()
    simulation.run_rounds(4)
    simulation.outcome = Outcome(result=result, message="")
    simulation.run_rounds(3)
    assert simulation.status.phase == ("Succeeded" if result == "completed" else "Failed")
    assert simulation.status.message == NO_MESSAGE


def test_an_end_whose_message_was_removed_from_the_status_gets_one() -> None:
    simulation = Simulation()
    simulation.run_rounds(4)
    simulation.outcome = Outcome(result="failed", message="all checkpoints are corrupt")
    simulation.run_rounds(3)
    emptied = [c.model_copy(update={"message": ""}) for c in simulation.status.conditions]
    simulation.status = simulation.status.model_copy(update={"conditions": tuple(emptied)})
    assert simulation.round().status.message == NO_MESSAGE
