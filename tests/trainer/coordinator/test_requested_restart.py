"""A restart from a checkpoint that somebody asks for: what ends, what begins, what is reported."""

from __future__ import annotations

from typing import Any

from regroup_trainer.coordinator.coordinator_status import handed_over, make_status
from regroup_trainer.protocol.config import ResumePolicy
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import RequestAnswer
from regroup_trainer.protocol.rank_messages import Progress, Restored
from tests.support.coordinator_simulation import Job, SimulatedAgent, make_desired, start_job

PENDING = RequestAnswer(request="now-1")
LATEST = ResumePolicy()


def trained(**desired: Any) -> tuple[Job, list[SimulatedAgent]]:
    """A job that has made some 25 of many steps, with a checkpoint every ten."""
    job, agents = start_job(steps=10_000, **desired)
    job.wait(1.6)
    job.checkpoints = {10, 20}
    return job, agents


def ask(job: Job, request: str = "now-1") -> None:
    """The spec stays as it is."""
    job.desired = job.desired.model_copy(update={"restart_request": request})
    job._do(job.core.update_desired(job.desired, job.now))


def answer(job: Job) -> RequestAnswer | None:
    return make_status(job.core.state, 1).restart_answer


def finished(job: Job) -> RequestAnswer:
    job.wait(5)
    found = answer(job)
    assert found is not None
    return found


def test_the_ranks_start_from_the_newest_checkpoint_although_their_state_lives() -> None:
    job, _ = trained()
    before, step = job.record.number, job.step
    ask(job)
    found = finished(job)
    assert found.outcome == "Done"
    assert found.message == f"the ranks started from step {step // 10 * 10} of a checkpoint"
    assert (job.record.number.n, job.record.restored_from) == (before.n + 1, "Checkpoint")
    assert job.record.desired.resume == LATEST
    restart = job.core.state.recoveries.records()[-1]
    assert (restart.cause, restart.message) == (
        "resize", "somebody asks for a restart from the newest checkpoint",
    )  # fmt: skip


def test_a_request_is_acted_on_once() -> None:
    job, agents = trained()
    ask(job)
    finished(job)
    number = job.record.number
    ask(job)
    job.wait(5)
    assert job.record.number == number
    job.crash(agents[2])
    job.wait(5)
    assert job.record.number.n == number.n + 1
    sources = [job.record.restored_from]
    ask(job, "now-2")
    assert finished(job).outcome == "Done"
    sources.append(job.record.restored_from)
    assert sources == ["Peers", "Checkpoint"], "between them, it goes on from what lives"


def test_a_step_is_looked_for_and_named_to_the_one_generation_that_starts_from_it() -> None:
    job, agents = trained()
    ask(job, "now-1@10")
    assert finished(job).outcome == "Done"
    assert job.record.desired.resume == ResumePolicy(policy="Step", step=10)
    job.crash(agents[2])
    job.wait(5)
    assert job.record.desired.resume == LATEST


def test_a_checkpoint_that_is_not_there_is_refused_and_nothing_ends() -> None:
    job, _ = trained()
    number = job.record.number
    ask(job, "now-1@15")
    found = finished(job)
    assert (found.outcome, found.message) == ("Refused", "there is no checkpoint of step 15")
    assert job.record.number == number


def test_what_is_no_step_is_refused() -> None:
    job, _ = trained()
    ask(job, "now-1@-3")
    assert finished(job).message == "'-3' is no step: write VALUE or VALUE@STEP"


def test_a_step_is_refused_where_the_spec_names_one_itself() -> None:
    job, _ = trained(resume=ResumePolicy(policy="Step", step=10))
    ask(job, "now-1@20")
    assert finished(job).outcome == "Refused"
    ask(job, "now-2")
    assert finished(job).outcome == "Done"


def test_a_program_without_a_session_is_not_restarted() -> None:
    job = Job(make_desired(script=("train.py",), restart_request="now-1"), is_unmanaged=True)
    agents = [job.add_agent(index) for index in range(3)]
    job.wait(1)
    number = job.record.number
    job.send(agents[0], Restored(generation=number, rank=0, step=0, restored_from="Script"))
    job.send(agents[0], Progress(generation=number, rank=0, step=1, time=job.now))
    found = finished(job)
    assert found.outcome == "Refused"
    assert "no Session" in found.message


def test_ranks_that_cannot_load_it_end_the_request_and_not_the_job() -> None:
    job, agents = trained()
    job.is_unmanaged = True  # no state is reported to be in place
    ask(job, "now-1@10")
    job.wait(1)
    restart = job.record.number
    assert job.record.desired.resume.step == 10
    job.is_unmanaged = False
    job.fail_rank(agents[0])
    assert finished(job).outcome == "Failed"
    assert job.record.number > restart
    assert job.record.desired.resume == LATEST
    assert job.outcome is None


def test_a_request_during_a_recovery_waits_for_its_end() -> None:
    job, agents = trained()
    for agent in agents[1:]:
        job.crash(agent)
    ask(job)
    assert answer(job) == PENDING
    job.add_agent(1)
    found = finished(job)
    assert found.outcome == "Done"
    assert job.record.restored_from == "Checkpoint"


def test_a_request_before_the_first_step_waits_for_a_state() -> None:
    job = Job(make_desired(restart_request="now-1"))
    assert answer(job) == PENDING
    for index in range(3):
        job.add_agent(index)
    job.wait(0.2)
    assert job.record.number == GenerationNumber(1, 1)
    assert finished(job).outcome == "Done"


def test_the_next_process_of_a_coordinator_acts_on_what_is_pending() -> None:
    job, agents = trained()
    for agent in agents[1:]:
        job.crash(agent)
    ask(job)
    assert handed_over(job.core.state).restart_request == "now-1"
    job.add_agent(1)
    finished(job)
    assert handed_over(job.core.state).restart_request == ""


def test_a_coordinator_that_takes_over_does_not_restart_once_more() -> None:
    """The record of the generation says what it began."""
    job, _ = trained()
    ask(job)
    job.wait(5)
    number = job.record.number
    job.start_coordinator(2)
    job.wait(5)
    assert job.record.number == number
    assert finished(job).outcome == "Done"
