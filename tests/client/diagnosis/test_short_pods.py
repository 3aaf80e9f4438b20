"""Pods of the moment, on a cluster that the tests play."""

from __future__ import annotations

from typing import Any, cast

import pytest

from regroup.diagnosis.short_pods import running_pods
from regroup.kubernetes.cluster_api import ClusterApi
from regroup.kubernetes.cluster_errors import ClusterError

Json = dict[str, Any]
BODIES = [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]
RUNNING: Json = {"phase": "Running"}


class Cluster:
    """Gives each pod this status."""

    def __init__(self, status: Json, events: list[Json] | ClusterError | None = None) -> None:
        self.status, self.happened = status, events or []
        self.made: list[str] = []
        self.refuses = ""

    def create_pod(self, _namespace: str, body: Json) -> None:
        name = body["metadata"]["name"]
        if name == self.refuses:
            raise ClusterError(f"cannot create pods {name}", 403)
        self.made.append(name)

    def pod(self, _namespace: str, name: str) -> Json:
        return {"metadata": {"name": name}, "status": self.status}

    def events(self, _namespace: str, _selector: str) -> list[Json]:
        if isinstance(self.happened, ClusterError):
            raise self.happened
        return self.happened

    def delete_pod(self, _namespace: str, name: str) -> None:
        if name not in self.made:
            raise ClusterError(f"pods {name} not found", 404)
        self.made.remove(name)


def start(cluster: Cluster, seconds: float = 0.0) -> list[str]:
    with running_pods(cast("ClusterApi", cluster), "team", BODIES, seconds) as pods:
        return [pod.name for pod in pods]


def test_pods_run_inside_and_are_gone_afterwards() -> None:
    cluster = Cluster(RUNNING)
    assert start(cluster) == ["a", "b"]
    assert cluster.made == []


def test_they_are_gone_after_an_error_inside() -> None:
    cluster = Cluster(RUNNING)
    with (
        pytest.raises(KeyboardInterrupt),
        running_pods(cast("ClusterApi", cluster), "team", BODIES, 0),
    ):
        raise KeyboardInterrupt
    assert cluster.made == []


def test_a_pod_that_is_refused_leaves_no_other() -> None:
    cluster = Cluster(RUNNING)
    cluster.refuses = "b"
    with pytest.raises(ClusterError, match="cannot create pods b"):
        start(cluster)
    assert cluster.made == []


def waits(reason: str, message: str = "") -> Json:
    state = {"state": {"waiting": {"reason": reason, "message": message}}}
    return {"phase": "Pending", "containerStatuses": [state]}


def unscheduled(message: str) -> Json:
    condition = {"type": "PodScheduled", "status": "False", "message": message}
    return {"phase": "Pending", "conditions": [condition]}


OLD = {"reason": "Old", "message": "news", "lastTimestamp": "2026-01-01T00:00:00Z"}
MOUNT = {
    "reason": "FailedMount",
    "message": "no\x1bsuch volume",
    "eventTime": "2026-01-02T00:00:00Z",
}


@pytest.mark.parametrize(
    ("status", "events", "why"),
    [
        (unscheduled("0/3 nodes are available"), [MOUNT], "Pending: 0/3 nodes are available"),
        (waits("ErrImagePull", "not found"), [], "Pending: ErrImagePull not found"),
        (waits("ContainerCreating"), [MOUNT, OLD], r"Pending: FailedMount no\x1bsuch volume"),
        (waits("ContainerCreating"), ClusterError("no right", 403), "Pending: ContainerCreating"),
        ({"phase": "Pending"}, [], "Pending: nothing says why"),
    ],
)
def test_what_keeps_a_pod_from_running_is_named(
    status: Json, events: list[Json] | ClusterError, why: str
) -> None:
    cluster = Cluster(status, events)
    with pytest.raises(ClusterError) as raised:
        start(cluster)
    assert str(raised.value) == f"pod a does not run: {why}"
    assert cluster.made == []


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (waits("ImagePullBackOff", "not found"), "ImagePullBackOff not found"),
        (waits("InvalidImageName"), "InvalidImageName"),
        (
            {
                "phase": "Failed",
                "containerStatuses": [
                    {"state": {"terminated": {"exitCode": 2, "reason": "Error"}}}
                ],
            },
            "exit code 2 Error",
        ),
    ],
)
def test_what_time_does_not_mend_is_not_waited_for(status: Json, why: str) -> None:
    with pytest.raises(ClusterError, match=f"{why}$"):
        start(Cluster(status), seconds=3600)
