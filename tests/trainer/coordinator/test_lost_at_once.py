"""A job whose coordinator and workers are lost at once: nobody is left who could report it."""

from __future__ import annotations

import pytest

from regroup_trainer.coordinator.accounting import Loss, loss_of
from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.current_generation import LastCommit
from regroup_trainer.protocol.desired import LastKnown
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.rank_messages import HistoryEnd, Restored
from tests.support.coordinator_simulation import Job, make_desired

WALL = 1_000_000.0
FIRST = GenerationNumber(1, 1)


NO_LINES = HistoryEnd(step=0, written_step=0, world_size=0, time=WALL)


def history_to(step: int, written_step: int | None = None) -> HistoryEnd:
    """Of three ranks that were lost at 95 s."""
    written_step = step if written_step is None else written_step
    return HistoryEnd(step=step, written_step=written_step, world_size=3, time=WALL + 95)


def restart(
    *, known_step: int | None, saved_step: int, history_end: HistoryEnd | None, lineage: bool = True
) -> CoordinatorStatus:
    """The status after a start with new workers only."""
    known = LastKnown(step=known_step, time=WALL + 96, world_size=3) if known_step else None
    job = Job(make_desired(last_known=known, steps=5000), term=2)
    job.lineage = FIRST if lineage else None
    job.saved_step, job.history_end = saved_step, history_end
    for index in range(3):
        job.add_agent(index)
    job.wait(3.0)
    return make_status(job.core.state, 1)


def test_it_is_recorded_as_a_recovery_with_its_lost_steps() -> None:
    status = restart(known_step=2190, saved_step=2051, history_end=history_to(2198))
    (recovery,) = status.recoveries
    assert (recovery.cause, recovery.restored_from) == ("infrastructure", "Checkpoint")
    assert recovery.message == "the coordinator and all workers were lost at once"
    assert (recovery.lost_steps, recovery.unflushed_steps) == (147, 0)
    assert recovery.resumed_from_step == 2051
    assert (recovery.world_size_before, recovery.world_size_after) == (3, 3)
    assert recovery.down_seconds is not None
    assert 4 < recovery.down_seconds < 8
    assert status.ledger.lost_steps == 147
    assert status.ledger.restarts == {"infrastructure": 1}
    assert [event.reason for event in status.events].count("Recovered") == 1


def test_a_coordinator_that_knows_of_no_generation_counts_the_steps_alone() -> None:
    """The job may have been suspended without a save, which is no failure."""
    status = restart(known_step=None, saved_step=2051, history_end=history_to(2198))
    assert status.recoveries == ()
    assert status.ledger.restarts == {}
    assert status.ledger.lost_steps == 147


def test_steps_that_are_lost_are_counted_once_though_everything_dies_again_before_a_step() -> None:
    job = Job(make_desired(steps=5000, strategy="fsdp"))
    agents = [job.add_agent(index) for index in range(3)]
    job.wait(1.5)
    at = job.step
    assert at > 10
    for agent in agents[1:]:
        agent.hangs_in_step = True
    job.crash(agents[0])
    job.wait(0.5)
    status = make_status(job.core.state, 1)
    assert status.ledger.lost_steps == at - 10
    assert status.progress is not None
    assert status.progress.step == 10


def test_a_restarted_process_knows_its_own_term() -> None:
    job = Job(term=2)
    job.lineage = GenerationNumber(2, 1)
    job.saved_step, job.history_end = 20, history_to(20)
    for index in range(3):
        job.add_agent(index)
    job.wait(3.0)
    (recovery,) = make_status(job.core.state, 1).recoveries
    assert (recovery.lost_steps, recovery.world_size_before) == (0, 3)


def test_a_generation_that_made_no_step_is_no_job_that_has_trained() -> None:
    status = restart(known_step=None, saved_step=0, history_end=NO_LINES)
    assert status.recoveries == ()
    assert status.ledger.lost_steps == 0


@pytest.mark.parametrize("lineage", [True, False], ids=["resumed", "first"])
def test_a_first_start_and_a_resumed_job_have_recovered_from_nothing(lineage: bool) -> None:
    saved = 20 if lineage else 0
    history_end = history_to(20) if lineage else None
    status = restart(known_step=None, saved_step=saved, history_end=history_end, lineage=lineage)
    assert status.recoveries == ()
    assert status.ledger.restarts == {}
    assert status.ledger.lost_steps == 0


@pytest.mark.parametrize(
    ("reported", "history_end", "loss"),
    [
        (None, None, Loss(0, 0)),
        (40, None, Loss(20, 0)),
        (40, history_to(40), Loss(20, 0)),
        (40, history_to(43), Loss(23, 0)),  # reports are half a second behind
        (40, history_to(31), Loss(20, 9)),  # a node died with its cache
        (40, history_to(12), Loss(20, 20)),
        (40, NO_LINES, Loss(20, 20)),  # the volume was full from the first step on
        (15, history_to(18), Loss(0, 0)),
        (40, history_to(20, written_step=40), Loss(20, 0)),  # cut off by a generation in between
    ],
)
def test_a_loss_is_all_that_report_or_history_knows(
    reported: int | None, history_end: HistoryEnd | None, loss: Loss
) -> None:
    report = Restored(generation=FIRST, rank=0, step=20, history_end=history_end)
    before = LastCommit(reported, 0.0) if reported is not None else None
    assert loss_of(report, before) == loss
