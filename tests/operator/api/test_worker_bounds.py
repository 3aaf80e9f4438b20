"""Jobs that are larger than an installation allows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from regroup_operator.decide.planner import plan
from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import AnyJob, InvalidJob, Observed
from tests.support.specs import SMALLEST

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job_with(max_workers: int = 4096, **fields: Any) -> AnyJob:
    """A job as the API server has it, with these fields of its spec."""
    metadata = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 1}
    return read_job({"metadata": metadata, "spec": {**SMALLEST, **fields}}, NOW, max_workers)


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
