"""The status that a coordinator reports."""

from __future__ import annotations

from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus


def test_a_status_survives_the_wire() -> None:
    status = CoordinatorStatus(
        term=1,
        sequence=2,
        revision=3,
        phase="waiting",
        message="",
        generation=GenerationNumber(2, 7),
    )
    assert CoordinatorStatus.model_validate_json(status.model_dump_json()) == status
