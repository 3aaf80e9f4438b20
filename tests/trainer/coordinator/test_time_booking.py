"""The time that no rank reports is booked as it passes, once, and on what it was spent."""

from __future__ import annotations

import pytest

from regroup_trainer.coordinator.coordinator_status import make_status
from regroup_trainer.coordinator.hangs import STALL_SECONDS
from regroup_trainer.coordinator.restart_budget import PROVEN_SECONDS
from regroup_trainer.protocol.agent_messages import RankExit
from regroup_trainer.protocol.ledger import GpuUse, Ledger
from regroup_trainer.protocol.rank_messages import Busy, Finished, Progress, VolumeProblem
from tests.support.coordinator_simulation import Job, make_desired, start_job

LONG = 4 * PROVEN_SECONDS
RANKS = 2
TICKS = 2.0
"""Seconds by which the start and a few ticks may be off."""


class NonReportingScript:
    """A job of two workers, with a rank each, whose script reports no steps."""

    def __init__(self, **desired: object) -> None:
        fields = {"script": ("train.py",), "replicas": RANKS, "backoff_seconds": 0.0, **desired}
        self.job = Job(make_desired(**fields), is_unmanaged=True)
        self.agents = [self.job.add_agent(index) for index in range(RANKS)]
        self.job.wait(1.0)

    @property
    def ledger(self) -> Ledger:
        return make_status(self.job.core.state, 1).ledger

    def gpu_seconds(self, use: GpuUse) -> float:
        return self.ledger.gpu_seconds[use]

    def fail(self) -> None:
        """All its ranks end with an error."""
        for agent in self.agents:
            agent.ranks_run = False
            rank = agent.state.local_ranks()[0]
            fields = {"generation": self.job.record.number, "rank": rank, "exit_code": 1}
            self.job.send(agent, RankExit.model_validate({**fields, "cause": "error"}))

    def end_well(self) -> None:
        """All its ranks end without an error."""
        number = self.job.record.number
        for agent in self.agents:
            agent.ranks_run = False
            rank = agent.state.local_ranks()[0]
            end = Finished(generation=number, rank=rank, step=0, reason="completed")
            self.job.send(agent, end)


def about(seconds: float) -> object:
    return pytest.approx(seconds, abs=TICKS * RANKS)


def test_a_script_without_reports_is_booked_as_work_while_it_runs() -> None:
    script = NonReportingScript()
    before, seen = script.job.now, list[float]()
    for _ in range(4):
        script.job.wait(LONG / 4)
        seen.append(script.gpu_seconds("useful"))
    elapsed = script.job.now - before
    assert seen == sorted(set(seen))
    assert seen[-1] == about(RANKS * elapsed)
    assert script.gpu_seconds("waiting") == about(0)
    assert script.ledger.seconds["step"] == about(elapsed)


@pytest.mark.parametrize("seconds", [LONG, PROVEN_SECONDS / 4])
def test_what_a_script_without_reports_has_worked_counts_when_it_ends_well(seconds: float) -> None:
    script = NonReportingScript()
    script.job.wait(seconds)
    script.end_well()
    assert script.job.outcome is not None
    assert script.gpu_seconds("useful") == about(RANKS * seconds)
    assert script.gpu_seconds("waiting") == about(0)


@pytest.mark.parametrize("max_restarts", [0, 10])
def test_a_failure_takes_nothing_back_of_what_a_script_has_worked(max_restarts: int) -> None:
    script = NonReportingScript(max_restarts=max_restarts)
    script.job.wait(LONG)
    script.fail()
    script.job.wait(PROVEN_SECONDS / 4)
    assert script.gpu_seconds("useful") == about(RANKS * LONG)
    script.job.wait(LONG)
    worked = LONG if max_restarts == 0 else 2 * LONG
    assert script.gpu_seconds("useful") == about(RANKS * (worked + bool(max_restarts) * 15.0))
    assert script.gpu_seconds("waiting") == about(0)


def test_a_script_that_fails_at_its_start_has_not_worked() -> None:
    script = NonReportingScript()
    script.job.wait(PROVEN_SECONDS / 2)
    script.fail()
    script.job.wait(3.0)
    assert script.gpu_seconds("useful") == 0
    assert script.gpu_seconds("waiting") == about(RANKS * PROVEN_SECONDS / 2)


@pytest.mark.parametrize("term", [1, 2])
def test_a_new_coordinator_goes_on_booking(term: int) -> None:
    script = NonReportingScript()
    script.job.wait(LONG)
    seed = script.ledger
    script.job.desired = script.job.desired.model_copy(update={"seed": seed})
    script.job.start_coordinator(term)
    script.job.wait(PROVEN_SECONDS / 2)
    assert script.gpu_seconds("useful") == about(RANKS * (LONG + PROVEN_SECONDS / 2))
    assert script.gpu_seconds("waiting") == about(0)


def test_a_session_that_waits_for_its_volume_does_not_work() -> None:
    script = NonReportingScript()
    problem = VolumeProblem(path="/volume", error="does not answer", since=0.0, at_risk="Nothing.")
    number = script.job.record.number
    busy = Busy(generation=number, rank=0, doing="waiting", step=0, volume=problem)
    script.job.send(script.agents[0], busy)
    script.job.wait(LONG)
    assert script.gpu_seconds("useful") == 0


def stalled_job() -> Job:
    """A job of three ranks that has trained for a second, and reports nothing any more."""
    job, agents = start_job(steps=1_000_000, progress_timeout_seconds=1800)
    for agent in agents:
        job.hang(agent)
    return job


def uses(job: Job) -> dict[GpuUse, float]:
    return make_status(job.core.state, 1).ledger.gpu_seconds


def test_a_job_that_stands_still_is_booked_as_waiting_while_it_does() -> None:
    job = stalled_job()
    began, seen = job.now, list[float]()
    for _ in range(4):
        job.wait(2 * STALL_SECONDS)
        seen.append(uses(job)["waiting"])
    assert seen == sorted(set(seen))
    assert seen[-1] == pytest.approx(3 * (job.now - began), abs=3 * TICKS)


def test_what_ranks_report_of_the_time_that_they_stood_still_counts_once() -> None:
    job = stalled_job()
    began, before = job.now, sum(uses(job).values())
    job.wait(5 * STALL_SECONDS)
    agent = next(iter(job.agents.values()))
    state, stood = job.core.state, job.now - began
    assert state.current is not None
    assert state.current.progress is not None
    last = state.current.progress.seconds["step"]
    for step, seconds in ((1, stood + 0.5), (2, stood + 20.5)):
        job.now += 0.5 if step == 1 else 20.0
        report = Progress(
            generation=job.record.number,
            rank=0,
            step=state.current.progress.step + 1,
            time=1_000_000.0 + job.now,
            seconds={"step": last + seconds},
        )
        job.send(agent, report)
    assert sum(uses(job).values()) - before == pytest.approx(3 * (stood + 20.5), abs=3 * TICKS)
    assert uses(job)["useful"] == pytest.approx(3 * 21.5, abs=3 * TICKS)


def test_the_last_hang_of_a_job_counts_too() -> None:
    job, agents = start_job(
        steps=1_000_000, progress_timeout_seconds=300, max_hang_restarts=0, min_replicas=3
    )
    began, before = job.now, sum(uses(job).values())
    for agent in agents:
        job.hang(agent)
    while job.outcome is None:
        job.wait(10.0)
        assert job.now < began + 400.0
    spent = sum(uses(job).values()) - before
    assert spent > 3 * 300.0
