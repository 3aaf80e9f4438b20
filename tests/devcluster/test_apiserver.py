"""The API server for integration tests."""

from __future__ import annotations

import json

import pytest

from devcluster import versions
from devcluster.apiserver import ApiServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver


def test_it_serves_the_pinned_version_and_leaves_nothing() -> None:
    with ApiServer() as server:
        version = json.loads(server.kubectl("version", "-o", "json"))
        kubeconfig = server.kubeconfig
    assert version["serverVersion"]["gitVersion"] == f"v{versions.KUBERNETES_VERSION}"
    assert not kubeconfig.exists()


def test_with_controllers_dependents_are_collected() -> None:
    with ApiServer(controllers=True) as server:
        server.kubectl("create", "configmap", "owner")
        uid = server.kubectl("get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
        dependent = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "dependent", "ownerReferences": [owner]},
        }
        server.kubectl("create", "-f", "-", stdin=json.dumps(dependent))
        server.kubectl("delete", "configmap", "owner")
        wait_until(
            "the end of the dependent",
            lambda: "dependent" not in server.kubectl("get", "configmaps", "-o", "name"),
            60,
        )
