"""Which traces a coordinator exports, and when."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import pytest

from regroup_trainer.coordinator.generation_trace import BROKEN, departure_of, trace_of
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.system.spans import ROOT
from tests.support.coordinator_server import serving
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello
from tests.support.traced_job import IDENTITY, TracedJob


def make_job(agents: int = 3, seconds: float = 2.0, **desired: object) -> TracedJob:
    """It has trained for a while."""
    job = TracedJob(make_desired(steps=5000, **desired))
    for index in range(agents):
        job.add_agent(index)
    job.wait(seconds)
    return job


def test_a_start_a_recovery_and_a_change_of_size_have_a_trace_each() -> None:
    job = make_job()
    assert job.names == ["start"]
    job.crash(next(iter(job.agents.values())))
    job.wait(5.0)
    assert job.names == ["start", "recovery"]
    recovery = job.newest
    assert list(recovery) == [ROOT, "detect", "abort", "form", "restore", "first step"]
    facts = recovery[ROOT].attributes
    (record,) = job.core.state.recoveries.records()
    assert recovery[ROOT].trace == trace_of(IDENTITY, record.generation)
    assert facts["regroup.cause"] == record.cause == "infrastructure"
    assert facts["regroup.pod"] == record.pod
    assert facts["regroup.lost_steps"] == record.lost_steps
    assert facts["regroup.down_seconds"] == record.down_seconds
    assert recovery[ROOT].end - recovery[ROOT].start <= (record.down_seconds or 0) + 0.5
    job.add_agent(0, "node-new")
    job.wait(5.0)
    assert job.names == ["start", "recovery", "resize"]
    assert "agreed end" in job.newest


def test_the_parts_of_a_recovery_add_up_to_it() -> None:
    job = make_job()
    job.cut_off(next(iter(job.agents.values())))
    job.wait(10.0)
    spans = job.newest
    parts = [span for path, span in spans.items() if path != ROOT and "/" not in path]
    assert parts[0].start == spans[ROOT].start
    assert parts[-1].end == spans[ROOT].end
    assert all(one.end == other.start for one, other in itertools.pairwise(parts))
    assert spans["detect"].end - spans["detect"].start >= 2.0, "the timeout of heartbeats"


def test_a_generation_that_breaks_before_its_first_step_has_a_trace_too() -> None:
    job = make_job()
    survivor, other, victim = job.agents.values()
    survivor.hangs_at_start = True
    job.crash(victim)
    job.wait(1.0)
    assert job.names == ["start"]
    job.crash(other)
    job.add_agent(other.index, "node-new")
    job.wait(10.0)
    assert job.names[:3] == ["start", "recovery", "recovery"]
    broken, good = job.traces[1], job.traces[2]
    assert broken[ROOT].error == BROKEN
    assert not good[ROOT].error
    assert broken[ROOT].trace != good[ROOT].trace


def test_when_the_last_rank_leaves_is_the_end_of_an_abort() -> None:
    job = make_job()
    current = job.core.state.current
    assert current is not None
    assert departure_of(current) == (None, None)
    job.crash(next(iter(job.agents.values())))
    assert departure_of(current) == (None, job.now)


def test_a_loss_before_an_agreed_end_is_a_recovery() -> None:
    job = make_job(agents=4, replicas=4)
    first, _, third, _ = job.agents.values()
    first.stuck_in = "it computes for long"
    job.ask_to_leave(third)
    job.wait(0.5)
    job.cut_off(first)
    job.wait(10.0)
    assert job.names[1] == "recovery"
    assert "agreed end" not in job.traces[1]
    assert "detect" in job.traces[1]


def test_a_successor_exports_no_trace_of_what_it_adopts() -> None:
    job = make_job()
    job.start_coordinator(term=2)
    job.wait(5.0)
    assert job.record.number == GenerationNumber(1, 1)
    assert job.names == ["start"]
    job.crash(next(iter(job.agents.values())))
    job.wait(5.0)
    assert job.names == ["start", "recovery"]
    assert job.newest[ROOT].attributes["regroup.generation"] == "2.1"
    assert "detect" in job.newest


def test_the_end_of_a_job_exports_what_is_open() -> None:
    job = make_job(agents=2, seconds=0.0)
    next(iter(job.agents.values())).hangs_in_step = True
    job.add_agent(2)
    job.wait(2.0)
    assert job.names == []
    job.update_desired(suspend=True)
    job.wait(120.0)
    assert job.outcome is not None
    assert len(job.names) == 1


def test_a_fault_in_here_costs_a_trace_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("regroup_trainer.coordinator.serving.traced_generations.spans_of", fails)
    with caplog.at_level(logging.ERROR):
        job = make_job()
    assert job.step > 5
    assert len(caplog.records) == 1


def test_traces_change_no_decision() -> None:
    """The same course, second by second, with and without them."""
    courses = []
    for kind in (TracedJob, TracedJob.__mro__[1]):
        job = kind(make_desired(steps=5000))
        agents = [job.add_agent(index) for index in range(3)]
        job.wait(3.0)
        job.cut_off(agents[1])
        job.wait(6.0)
        job.add_agent(1, "node-new")
        job.wait(6.0)
        courses.append((job.begun.keys(), job.step, job.core.state.recoveries.records()))
    assert courses[0] == courses[1]


async def test_the_server_looks_after_each_decision(tmp_path: Path) -> None:
    seen: list[float] = []
    async with serving(tmp_path) as setup:
        setup.server._after_decision = seen.append
        count = len(seen)
        await setup.join(make_hello(0))
        await setup.status(after=0, wait=30)
        assert len(seen) > count
    assert seen == sorted(seen)
