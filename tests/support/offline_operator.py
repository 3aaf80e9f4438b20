"""What the operator makes of a spec, without an operator."""

from __future__ import annotations

from datetime import UTC, datetime

from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import Job
from regroup_operator.render.pod_check import find_problem
from tests.support.kube_api import Json
from tests.support.rendering import SETTINGS

METADATA = {"namespace": "a", "name": "gpt", "uid": "4322f31b-aaaa", "generation": 1}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def problem_of(spec: Json) -> str:
    """Why the operator refuses a spec; empty when it makes pods of it. Raises what the operator
    would not expect.
    """
    job = read_job({"metadata": METADATA, "spec": spec}, NOW)
    return find_problem(job, SETTINGS) if isinstance(job, Job) else job.problem.message
