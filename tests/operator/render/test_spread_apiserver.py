"""Workers of a job are put on different nodes, by a real scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from devcluster.apiserver import ApiServer
from tests.support.kube_api import Api, Json, Namespace
from tests.support.rendering import make_worker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

WORKERS = 3


@pytest.fixture(scope="module")
def scheduled() -> Iterator[Namespace]:
    """A namespace beside a scheduler and nodes, one of which is far larger than the others."""
    with ApiServer() as server:
        api = Api(server.kubeconfig)
        for number in range(WORKERS):
            add_node(api, f"node{number}", cpu=4 if number else 400)
        server.start_scheduler()
        yield Namespace.make(api, "team")


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


def node_of(namespace: Namespace, name: str) -> str | None:
    """Where the scheduler has put a pod."""
    pod = namespace.api.request("GET", namespace.core(f"pods/{name}")).body
    node: str | None = pod["spec"].get("nodeName")
    return node


def test_workers_are_put_on_different_nodes_also_where_one_has_most_room(
    scheduled: Namespace,
) -> None:
    names = [f"worker{number}" for number in range(WORKERS)]
    for name in names:
        made = scheduled.api.request("POST", scheduled.core("pods"), worker(name))
        assert made.status == 201
    nodes = {wait_until("a node", partial(node_of, scheduled, name)) for name in names}
    assert len(nodes) == WORKERS
