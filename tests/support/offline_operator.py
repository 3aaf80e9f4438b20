"""What the operator makes of a spec, without an operator."""

from __future__ import annotations

from datetime import UTC, datetime

from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import AnyJob, Job
from regroup_operator.render import torchrun_workload, workload
from regroup_operator.render.pod_check import find_problem
from regroup_trainer.protocol.ledger import Ledger
from tests.support.kube_api import Json
from tests.support.rendering import SETTINGS

NAMESPACE = "a"
METADATA = {"namespace": NAMESPACE, "name": "gpt", "uid": "4322f31b-aaaa", "generation": 1}
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADDRESS = "192.0.2.1"


def problem_of(spec: Json) -> str:
    """Why the operator refuses a spec; empty when it makes pods of it. Raises what the operator
    would not expect.
    """
    job = _read(spec)
    return find_problem(job, SETTINGS) if isinstance(job, Job) else job.problem.message


def pods_of(spec: Json) -> tuple[Json, Json]:
    """What leads the workers of a spec that the operator takes, and one of these."""
    job = _read(spec)
    assert isinstance(job, Job), job.problem
    if job.launcher == "torchrun":
        return (
            torchrun_workload.store_pod(job, SETTINGS, 1, ()),
            torchrun_workload.agent_pod(job, SETTINGS, (0, 1), ADDRESS, ()),
        )
    wanted = workload.desired(job, Ledger())
    return (
        workload.coordinator_pod(job, SETTINGS, wanted, 1, ()),
        workload.worker_pod(job, SETTINGS, (0, 1), ADDRESS, ()),
    )


def _read(spec: Json) -> AnyJob:
    return read_job({"metadata": METADATA, "spec": spec}, NOW)
