"""What the tests of rendered objects share: settings, jobs, a worker and its environment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from regroup_operator.api.settings import Settings
from regroup_operator.observe.kubernetes_objects import read_job
from regroup_operator.observe.observed import Job
from regroup_operator.render import keyring, workload
from tests.support.operator_simulation import make_spec

SETTINGS = Settings(
    trainer_image="trainer:1",
    coordinator_image="operator:1",
    key_secret="regroup-system/regroup-key",
    lease="regroup-system/regroup-operator",
)

KEYS = keyring.Keyring("0a0a0a0a", {"0a0a0a0a": b"0123456789abcdef"}, SETTINGS.key_secret)


def make_valid_job(**fields: Any) -> Job:
    """A job as the operator reads it, with a valid spec; `fields` override the spec's."""
    return job_of(make_spec(**fields), {"images": {}})


def job_of(spec: dict[str, Any], status: dict[str, Any]) -> Job:
    """A job with this spec, which must be valid, and this status."""
    metadata = {"namespace": "team", "name": "gpt", "uid": "4322f31b-aaaa", "generation": 7}
    job = read_job(
        {"metadata": metadata, "spec": spec, "status": status}, datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert isinstance(job, Job), job.problem
    return job


def make_worker(excluded: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    """A rendered worker pod; `fields` override the spec's."""
    return workload.worker_pod(make_valid_job(**fields), SETTINGS, (1, 4), "198.19.0.1", excluded)


def main_of(pod: dict[str, Any]) -> dict[str, Any]:
    """The main container of a worker pod."""
    found: dict[str, Any] = next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")
    return found


def values_of(container: dict[str, Any]) -> dict[str, str]:
    """The container's environment, with a stand-in for what the kubelet fills in."""
    return {entry["name"]: entry.get("value", "filled-in") for entry in container["env"]}
