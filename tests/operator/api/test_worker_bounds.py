"""Jobs that are larger than an installation allows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from regroup_operator.api.worker_bounds import DEFAULT_MAX_WORKERS, most_to_report
from regroup_operator.decide.plan import CreateWorker, DeletePod
from regroup_operator.decide.planner import plan
from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import AnyJob, InvalidJob, Job, Observed
from tests.support.operator_simulation import Simulation, make_spec
from tests.support.specs import SMALLEST

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job_with(max_workers: int = 4096, status: Any = None, **fields: Any) -> AnyJob:
    """A job as the API server has it, with these fields of its spec."""
    metadata = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 1}
    document = {"metadata": metadata, "spec": {**SMALLEST, **fields}, "status": status or {}}
    return read_job(document, NOW, max_workers)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"spares": 2**31 - 1}, "spec.spares 2147483647 make up to 21474836"),
        ({"replicas": 4097, "elasticPolicy": None}, "spec.replicas 4097"),
        (
            {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2**31 - 1}},
            "spec.elasticPolicy.maxReplicas 2147483647",
        ),
        ({"resources": {"limits": {"nvidia.com/gpu": 100_000}}}, "100000 ranks a worker"),
    ],
)
def test_a_job_that_is_too_large_is_refused_and_makes_nothing(
    fields: dict[str, Any], words: str
) -> None:
    job = job_with(**fields)
    assert isinstance(job, InvalidJob)
    assert job.problem.reason == "InvalidSpec"
    assert words in job.problem.message
    assert plan(job, Observed(), NOW).actions == ()


def test_the_installation_says_how_large_a_job_may_be() -> None:
    fields = {"replicas": 3, "spares": 1, "elasticPolicy": None}
    assert not isinstance(job_with(4, **fields), InvalidJob)
    refused = job_with(3, **fields)
    assert isinstance(refused, InvalidJob)
    assert "up to 4 workers, and this installation allows 3 a job" in refused.problem.message


@pytest.mark.parametrize(
    ("max_workers", "replicas", "ranks", "words"),
    [
        (4096, 4096, 16, ""),
        (4096, 64, 1024, ""),
        (4, 1, 1024, ""),
        (
            4096,
            4096,
            17,
            "spec.nprocPerNode 17 makes 17 ranks in each of up to 4096 workers, 69632 in all",
        ),
        (4, 2, 1024, "and this installation allows 1024 a job: ask for fewer (16 for each worker"),
    ],
)
def test_workers_and_their_ranks_are_bounded_together(
    max_workers: int, replicas: int, ranks: int, words: str
) -> None:
    job = job_with(max_workers, replicas=replicas, elasticPolicy=None, nprocPerNode=ranks)
    message = job.problem.message if isinstance(job, InvalidJob) else ""
    assert (words in message) if words else "ranks in each" not in message


MANY = {"minReplicas": 1, "maxReplicas": 100_000}


@pytest.mark.parametrize("launcher", ["regroup", "torchrun"])
def test_a_job_that_ran_before_the_limit_may_have_any_max_replicas(launcher: str) -> None:
    script = {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}}
    fields: dict[str, Any] = {"launcher": launcher, "elasticPolicy": MANY}
    if launcher == "torchrun":
        fields |= {"template": script, "trainer": None}
    assert isinstance(job_with(**fields), InvalidJob), "a new one is refused"
    job = job_with(status={"startTime": "2025-12-31T00:00:00Z"}, **fields)
    assert isinstance(job, Job)
    assert job.spec.max_replicas == 100_000, "another number would restart torchrun"


def test_a_running_job_with_more_workers_than_the_limit_keeps_its_pods() -> None:
    simulation = Simulation(make_spec())
    simulation.run_rounds(4)
    running = simulation.job()
    started = running.status.model_dump(by_alias=True, mode="json", exclude_none=True)
    job = job_with(2, status=started, **make_spec())
    assert isinstance(job, InvalidJob)
    assert "allows 2 a job" in job.problem.message
    actions = plan(job, simulation.observed(), simulation.now).actions
    assert not [a for a in actions if isinstance(a, DeletePod | CreateWorker)]


@pytest.mark.parametrize("fields", [{"spares": 2**31 - 1}, {"replicas": 4097}])
def test_a_running_job_cannot_grow_beyond_the_limit(fields: dict[str, Any]) -> None:
    status = {"startTime": "2025-12-31T00:00:00Z"}
    assert isinstance(job_with(status=status, **{"elasticPolicy": MANY, **fields}), InvalidJob)


@pytest.mark.parametrize(
    ("asked", "pods", "most"),
    [(3, 3, 3), (3, 1, 3), (1_000_000, 2, 8), (3, 20, 20), (2**31, 10_000, DEFAULT_MAX_WORKERS)],
)
def test_a_coordinator_reports_about_no_more_workers_than_the_limit_or_the_pods_there_are(
    asked: int, pods: int, most: int
) -> None:
    assert most_to_report(asked, pods, max_workers=8) == most
