"""A checkpoint that somebody asks for: who is asked, when, and what counts as the answer."""

from __future__ import annotations

import pytest

from regroup_trainer.coordinator.coordinator_status import handed_over, make_status
from regroup_trainer.coordinator.effects import Effect, Send
from regroup_trainer.protocol.coordinator_messages import Decide
from regroup_trainer.protocol.generation import Decision
from regroup_trainer.protocol.job_status import RequestAnswer
from regroup_trainer.protocol.rank_messages import (
    CheckpointFailed,
    CheckpointSaved,
    Progress,
    Restored,
)
from tests.support.coordinator_simulation import Job, SimulatedAgent, make_desired, start_job

PENDING = RequestAnswer(request="now-1")


class Asked:
    """A job that trains, and the decisions that its coordinator sends."""

    def __init__(self) -> None:
        self.job, self.agents = start_job()
        self.job.wait(1)
        self.decisions: list[Decision] = []
        core, advance = self.job.core, self.job.core._advance

        def watched(now: float) -> list[Effect]:
            effects = advance(now)
            sent = [e.message for e in effects if isinstance(e, Send)]
            self.decisions += [m.decision for m in sent if isinstance(m, Decide)]
            return effects

        core._advance = watched  # type: ignore[method-assign]

    def ask(self, request: str) -> None:
        """The spec stays as it is: an annotation raises no generation of the object."""
        self.job.desired = self.job.desired.model_copy(update={"checkpoint_request": request})
        self.job.core.update_desired(self.job.desired, self.job.now)

    @property
    def answer(self) -> RequestAnswer | None:
        return make_status(self.job.core.state, 1).checkpoint_answer

    def saved(self, step: int) -> None:
        self._report(saved(self.job, step))

    def failed(self, step: int, stage: str) -> None:
        number = self.job.record.number
        report = {"generation": number, "rank": 0, "step": step, "stage": stage, "error": "full"}
        self._report(CheckpointFailed.model_validate(report))

    def _report(self, report: CheckpointSaved | CheckpointFailed) -> None:
        self.job.send(self.job.agents[self.job.record.members[0].member], report)


def saved(job: Job, step: int) -> CheckpointSaved:
    return CheckpointSaved(
        generation=job.record.number,
        rank=0,
        step=step,
        path=f"/volume/step-{step}",
        size_bytes=1,
        seconds=1.0,
        blocking_seconds=0.0,
        time=job.now,
    )


def test_rank_0_is_asked_once_and_its_next_checkpoint_is_the_answer() -> None:
    asked = Asked()
    assert make_status(asked.job.core.state, 1).checkpoint_answer is None
    asked.ask("now-1")
    asked.job.wait(1)
    assert (asked.decisions, asked.answer) == ([Decision.SAVE], PENDING)
    asked.saved(3)
    assert asked.answer == PENDING, "that save had begun before somebody asked"
    asked.saved(asked.job.step)
    assert asked.answer is not None
    assert asked.answer.outcome == "Done"
    step = asked.job.step
    assert asked.answer.message == f"step {step} is saved to /volume/step-{step}"
    asked.ask("now-1")
    asked.job.wait(1)
    assert asked.decisions == [Decision.SAVE], "the same request is not acted on again"
    asked.ask("now-2")
    assert asked.decisions == [Decision.SAVE, Decision.SAVE]
    assert asked.answer == RequestAnswer(request="now-2")


def test_a_save_that_failed_is_an_answer_but_not_that_old_ones_stay() -> None:
    asked = Asked()
    asked.ask("now-1")
    asked.failed(asked.job.step, "prune")
    asked.failed(3, "write")
    assert asked.answer == PENDING
    asked.failed(asked.job.step, "write")
    assert asked.answer is not None
    assert asked.answer.outcome == "Failed"
    assert "full" in asked.answer.message


def test_rank_0_is_asked_again_where_its_connection_was_closed_when_somebody_asked() -> None:
    asked = Asked()
    first = asked.agents[0]
    asked.job.disconnect(first)
    asked.ask("now-1")
    asked.job.wait(0.2)
    assert first.decision == Decision.SAVE
    asked.saved(asked.job.step)
    assert asked.answer is not None
    assert asked.answer.outcome == "Done"
    asked.job.disconnect(first)
    asked.job.wait(0.2)
    assert asked.decisions == [Decision.SAVE, Decision.SAVE], "it is answered"


def test_the_ranks_of_the_next_generation_are_asked_again() -> None:
    asked = Asked()
    asked.ask("now-1")
    asked.job.crash(asked.agents[2])
    asked.job.wait(4)
    assert asked.decisions == [Decision.SAVE, Decision.SAVE]
    asked.saved(asked.job.step)
    assert asked.answer is not None
    assert asked.answer.outcome == "Done"


def test_a_job_that_does_not_train_yet_is_asked_after_its_first_step() -> None:
    job = Job()
    job.desired = job.desired.model_copy(update={"checkpoint_request": "now-1"})
    job.start_coordinator()
    assert make_status(job.core.state, 1).checkpoint_answer == PENDING
    agents: list[SimulatedAgent] = [job.add_agent(index) for index in range(3)]
    job.wait(5)
    assert agents[0].decision == Decision.SAVE


def test_a_program_without_a_session_cannot_be_asked() -> None:
    job = Job(make_desired(script=("train.py",), checkpoint_request="now-1"), is_unmanaged=True)
    agents = [job.add_agent(index) for index in range(3)]
    job.wait(1)
    number = job.record.number
    assert make_status(job.core.state, 1).checkpoint_answer == PENDING, "it may report later"
    job.send(agents[0], Restored(generation=number, rank=0, step=0, restored_from="Script"))
    job.send(agents[0], Progress(generation=number, rank=0, step=1, time=job.now))
    answer = make_status(job.core.state, 1).checkpoint_answer
    assert answer is not None
    assert answer.outcome == "Refused"
    assert "no Session" in answer.message
    assert agents[0].decision == Decision.CONTINUE


@pytest.mark.parametrize("is_answered", [False, True])
def test_the_next_process_of_a_coordinator_acts_on_what_is_pending(is_answered: bool) -> None:
    asked = Asked()
    asked.ask("now-1")
    if is_answered:
        asked.saved(asked.job.step)
    kept = handed_over(asked.job.core.state)
    assert kept.checkpoint_request == ("" if is_answered else "now-1")
