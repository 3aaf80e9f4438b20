"""Two live pods of one worker, after a request that was executed later than it timed out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.decide.plan import DeletePod, Plan
from regroup_operator.observe.observed import Pod
from tests.support.operator_simulation import Simulation, make_torchrun_spec, training


def add_late(job: Simulation, name: str, **fields: Any) -> Pod:
    """The pod of a request for worker 1 that was executed late."""
    pod = next(pod for pod in job.workers() if pod.index == 1)
    job.pods[name] = replace(pod, name=name, uid="uid-late", **fields)
    return job.pods[name]


def deleted(what: Plan) -> list[tuple[str, str]]:
    return [(a.pod.name, a.why) for a in what.actions if isinstance(a, DeletePod)]


@pytest.mark.parametrize("late", ["gpt-w1-0", "gpt-w1-9"])
def test_the_pod_without_a_rank_is_deleted_and_the_job_trains_on(late: str) -> None:
    job = training()
    add_late(job, late)
    assert deleted(job.round()) == [(late, "gpt-w1-1 is worker 1 already")]
    job.run_rounds(4)
    assert [pod.name for pod in job.workers()] == ["gpt-w0-1", "gpt-w1-1", "gpt-w2-1"]
    assert job.status.restarts.infrastructure == job.status.restarts.preemption == 0


def test_of_two_pods_without_a_rank_the_newer_is_deleted() -> None:
    job = training()
    job.fail(next(pod for pod in job.workers() if pod.index == 1), exit_code=137)
    while not any(pod.name == "gpt-w1-2" for pod in job.workers()):
        job.round()
        job.tick(2)
    job.pods["gpt-w1-3"] = replace(job.pods["gpt-w1-2"], name="gpt-w1-3", uid="uid-late")
    assert [name for name, _ in deleted(job.round())] == ["gpt-w1-3"]


def test_a_pod_that_the_coordinator_calls_lost_goes_before_one_that_starts() -> None:
    job = training()
    first = next(pod for pod in job.workers() if pod.index == 1)
    add_late(job, "gpt-w1-9", phase="Pending")
    job.lost_since[first.uid] = job.now
    assert [name for name, _ in deleted(job.round())] == ["gpt-w1-1"]


def test_none_is_deleted_while_the_coordinator_does_not_report_who_has_a_rank() -> None:
    job = training()
    add_late(job, "gpt-w1-9")
    job.cut_off()
    assert deleted(job.round()) == []


def test_of_two_pods_of_torchrun_the_newer_is_deleted() -> None:
    job = Simulation(make_torchrun_spec())
    job.run_rounds(6)
    add_late(job, "gpt-w1-9", phase="Pending", node="")
    assert deleted(job.round()) == [("gpt-w1-9", "gpt-w1-1 is worker 1 already")]
    job.run_rounds(4)
    assert job.status.coordinator_term == 1
    assert job.status.restarts.preemption == 0
