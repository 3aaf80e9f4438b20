"""What the operator makes again when somebody deletes it, on a real API server."""

from __future__ import annotations

import pytest

from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import Kubelets
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

Running = tuple[Kubelets, CoordinatorStub]


def secrets(namespace: Namespace) -> dict[str, Json]:
    """The Secrets of the namespace, by name."""
    items = namespace.api.request("GET", namespace.core("secrets")).body["items"]
    return {secret["metadata"]["name"]: secret for secret in items}


def delete_secrets(namespace: Namespace) -> dict[str, Json]:
    """Delete all Secrets; what they were."""
    former = secrets(namespace)
    for name in former:
        namespace.api.request("DELETE", namespace.core(f"secrets/{name}"))
    assert not secrets(namespace)
    return former


def test_a_deleted_token_is_there_again_when_a_worker_is_made(
    namespace: Namespace, running: Running
) -> None:
    kubelets, _ = running
    former = delete_secrets(namespace)
    namespace.api.request("DELETE", namespace.core("pods/gpt-w2-1"), {"gracePeriodSeconds": 0})
    wait_until("a replacement", lambda: "gpt-w2-2" in kubelets.pods())
    made = secrets(namespace)
    assert {name: secret["data"] for name, secret in made.items()} == {
        name: secret["data"] for name, secret in former.items()
    }


def test_a_token_that_is_deleted_while_a_pod_waits_for_its_containers_is_made_again(
    namespace: Namespace, running: Running
) -> None:
    kubelets, _ = running
    namespace.api.request("DELETE", namespace.core("pods/gpt-w2-1"), {"gracePeriodSeconds": 0})
    wait_until("a replacement", lambda: "gpt-w2-2" in kubelets.pods())
    delete_secrets(namespace)
    kubelets.bind("gpt-w2-2", "n3")
    waiting = {"reason": "ContainerCreating"}
    main: Json = {"name": "trainer", "image": "a", "imageID": "", "ready": False}
    main |= {"restartCount": 0, "state": {"waiting": waiting}}
    kubelets.write("gpt-w2-2", {"phase": "Pending", "containerStatuses": [main]})
    wait_until("the Secret", lambda: secrets(namespace), seconds=30)
