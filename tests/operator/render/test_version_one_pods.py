"""A replacement in a job of release 0.1 or 0.2.0 starts as its other pods did."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from regroup_operator.render import workload
from regroup_trainer.protocol.environment import CoordinatorEnvironment
from regroup_trainer.protocol.ledger import Cause, Ledger
from tests.support.operator_simulation import make_spec
from tests.support.rendering import SETTINGS, job_of
from tests.support.version_one_records import VERSIONS, recorded

RELEASES = [1, 2]
"""0.1 and 0.2.0, by their protocols."""
OWN_IMAGE = {
    "spec": {
        "containers": [
            {"name": "trainer", "image": "my/image:1", "command": ["python3", "train.py"]}
        ]
    }
}


def started_by(pod: dict[str, Any]) -> dict[str, Any]:
    """What decides which processes run in a pod, and what they read."""
    main, spec = pod["spec"]["containers"][0], pod["spec"]
    injectors = spec.get("initContainers", [])
    return {
        **{key: main[key] for key in ("image", "command", "env", "volumeMounts")},
        "volumes": spec["volumes"],
        "initContainers": [
            {key: one[key] for key in ("image", "command", "volumeMounts")} for one in injectors
        ],
    }


def stored(protocol: int) -> dict[str, Any]:
    """The status of a job that the release with this protocol has started."""
    images = {"trainer": f"trainer:0.{protocol}", "coordinator": f"operator:0.{protocol}"}
    return {"coordinatorTerm": 2, "images": images, "protocolVersion": protocol}


def made_by(protocol: int, role: str) -> dict[str, Any]:
    """What starts such a pod of that release."""
    found: dict[str, Any] = recorded("pods", VERSIONS[protocol])[role]
    return found


def worker(spec: dict[str, Any], protocol: int) -> dict[str, Any]:
    job = job_of(spec, stored(protocol))
    return workload.worker_pod(job, SETTINGS, (1, 4), "198.19.0.1", ())


@pytest.mark.parametrize("protocol", RELEASES)
def test_a_worker_runs_the_image_the_module_and_the_variables_of_its_release(protocol: int) -> None:
    assert started_by(worker(make_spec(), protocol)) == made_by(protocol, "worker")


@pytest.mark.parametrize("protocol", RELEASES)
def test_a_worker_of_its_own_image_gets_the_agent_of_its_release(protocol: int) -> None:
    spec = make_spec(template=OWN_IMAGE)
    del spec["trainer"]
    expected = made_by(protocol, "worker with its own image")
    assert started_by(worker(spec, protocol)) == expected


@pytest.mark.parametrize("protocol", RELEASES)
def test_a_successor_of_the_coordinator_gets_a_spec_that_its_release_reads(protocol: int) -> None:
    trained = {
        "rendezvousGeneration": "2.4",
        "progress": {"step": 7, "updatedTime": "2026-01-01T00:00:00Z"},
    }
    job = job_of(make_spec(), {**stored(protocol), **trained})
    wanted = workload.desired(job, Ledger(restarts=dict.fromkeys(get_args(Cause), 0)))
    assert wanted.last_known is not None
    started = started_by(workload.coordinator_pod(job, SETTINGS, wanted, 2, ()))
    unread = CoordinatorEnvironment.variable("kept_file")  # by its release
    started["env"] = [entry for entry in started["env"] if entry["name"] != unread]
    assert started == made_by(protocol, "coordinator")
