"""A coordinator's report as the status of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from regroup.local.local_status import job_status
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus, Outcome
from regroup_trainer.protocol.ledger import Ledger
from regroup_trainer.protocol.rank_messages import Progress


def report(**changes: Any) -> CoordinatorStatus:
    fields = {"term": 1, "sequence": 1, "revision": 1, "phase": "running", "message": "trains"}
    return CoordinatorStatus(**{**fields, **changes})


def test_before_the_first_report() -> None:
    status = job_status(None, None, 2)
    assert (status.phase, status.replicas) == ("Starting", 2)


def test_what_is_reported_is_shown() -> None:
    progress = Progress(
        generation=GenerationNumber(1, 1), rank=0, step=12, time=1e9, loss=0.5, steps_per_second=2.0
    )
    ledger = Ledger(restarts={"application": 2, "resize": 1})
    status = job_status(
        report(progress=progress, total_steps=40, world_size=2, ledger=ledger), None, 2
    )
    assert (status.phase, status.world_size) == ("Running", 2)
    assert (status.progress.step, status.progress.total_steps) == (12, 40)
    assert (status.progress.loss, status.progress.percentage) == (0.5, 30)
    assert (status.restarts.application, status.restarts.resize) == (2, 1)
    assert status.restart_count == 2
    assert status.checkpoint.last_step is None


@pytest.mark.parametrize(
    ("result", "phase"),
    [("completed", "Succeeded"), ("failed", "Failed"), ("suspended", "Suspended")],
)
def test_a_job_has_ended_when_its_processes_have(result: Any, phase: str) -> None:
    former = report(phase=result)
    assert job_status(former, None, 2).phase == "Running"
    status = job_status(former, Outcome(result=result, message="it is over"), 2)
    assert (status.phase, status.message, status.replicas) == (phase, "it is over", 0)
