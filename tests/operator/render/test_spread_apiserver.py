"""Workers of a job are put on different nodes, by a real scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from devcluster.apiserver import ApiServer
from devcluster.controlplane import CLIENTS
from tests.support.kube_api import Api, Json
from tests.support.rendering import make_worker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

WORKERS = 3
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def scheduled() -> Iterator[Api]:
    """An API server with a scheduler and nodes, one of which is far larger than the others."""
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        wait_until("the namespace", partial(has_account, api))
        for number in range(WORKERS):
            add_node(api, f"node{number}", cpu=4 if number else 400)
        (identity,) = (one for one in CLIENTS if one.name == "scheduler")
        kubeconfig = server.kubeconfig_of(identity)
        flags = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0")
        server.start("kube-scheduler", (server.bin / "kube-scheduler", *flags))
        yield api


def has_account(api: Api) -> bool:
    """Whether the namespace has the account that pods need, which no controller makes here."""
    path, account = "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}}
    return api.request("POST", path, account).status == 201


def add_node(api: Api, name: str, cpu: int) -> None:
    """A node that says that it is ready."""
    amounts = {"cpu": str(cpu), "memory": f"{cpu}Gi", "pods": "110"}
    status = {"allocatable": amounts, "capacity": amounts}
    node = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
    assert api.request("POST", "/api/v1/nodes", {**node, "status": status}).status == 201
    untainted, merge = {"spec": {"taints": None}}, "application/merge-patch+json"
    assert api.request("PATCH", f"/api/v1/nodes/{name}", untainted, merge).status == 200


def worker(name: str) -> Json:
    """A worker without a volume, which nobody here would bind."""
    pod = make_worker()
    folders = [{"name": volume["name"], "emptyDir": {}} for volume in pod["spec"]["volumes"]]
    pod["metadata"] = {"name": name, "labels": pod["metadata"]["labels"]}
    return {**pod, "spec": {**pod["spec"], "volumes": folders}}


def node_of(api: Api, name: str) -> str | None:
    """Where the scheduler has put a pod."""
    node: str | None = api.request("GET", f"{PODS}/{name}").body["spec"].get("nodeName")
    return node


def test_workers_are_put_on_different_nodes_also_where_one_has_most_room(scheduled: Api) -> None:
    names = [f"worker{number}" for number in range(WORKERS)]
    for name in names:
        assert scheduled.request("POST", PODS, worker(name)).status == 201
    nodes = {wait_until("a node", partial(node_of, scheduled, name)) for name in names}
    assert len(nodes) == WORKERS
