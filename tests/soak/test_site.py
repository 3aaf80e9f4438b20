"""Whose memory a soak watches, and what it asks Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

from demo.installation import SYSTEM
from demo.stages.devcluster import DevclusterStage
from devcluster.errors import DeadlineError, NoSuchNodeError
from soak import site as watching
from soak.process import Process
from soak.site import Job, Site, watched
from tests.support.soak_site import pod

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases"
N1 = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1"
OPERATORS = "app.kubernetes.io/part-of=regroup"
Json = dict[str, Any]


class FakeApi:
    """Answers for objects by their path, or pods by their selector. Raises OSError for others."""

    def __init__(self, objects: Mapping[str, Any], ready: bool = True) -> None:
        self._objects, self._ready = objects, ready

    def request(self, method: str, path: str) -> Json:
        """Read it."""
        assert method == "GET"
        selector = parse_qs(urlsplit(path).query).get("labelSelector", [path])[0]
        if selector not in self._objects:
            raise OSError(f"{path} cannot be read")
        return cast(Json, self._objects[selector])

    def nodes_ready(self) -> dict[str, bool]:
        """The one node."""
        return {"n1": self._ready}


def site(objects: Mapping[str, Any], ready: bool = True) -> Site:
    """A site whose cluster has these objects."""
    endpoint = SimpleNamespace(api=FakeApi(objects, ready))
    cluster = SimpleNamespace(plane=SimpleNamespace(endpoint=endpoint))
    return Site(cast(DevclusterStage, SimpleNamespace(cluster=cluster)), "soak")


def main_process(_site: Site, pod: Json) -> Process:
    """Of every pod but a lost and a starting one."""
    name = pod["metadata"]["name"]
    if name == "lost":
        raise NoSuchNodeError("there is no node n9")
    if name == "starting":
        raise LookupError("no process")
    return Process(7, len(name))


def lease(holder: str | None) -> Json:
    return {"items": [{"spec": {"holderIdentity": holder}}]}


@pytest.mark.parametrize(
    ("leases", "leader"),
    [
        (lease("regroup-a-b_1f0c"), "regroup-a-b"),
        (lease(""), ""),
        (lease(None), ""),
        ({"items": []}, ""),
    ],
    ids=["held", "given back", "never held", "none"],
)
def test_the_operator_that_leads_is_the_one_that_holds_the_lease(leases: Json, leader: str) -> None:
    assert site({LEASES: leases}).leader() == leader


def test_operators_coordinators_and_agents_are_watched_by_role_and_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pods that have no process, or whose node nobody knows, are left out; so is torchrun."""
    ours, torch = "regroup.dev/job=gpt,regroup.dev/role=", "regroup.dev/job=torch,regroup.dev/role="
    found = site(
        {
            LEASES: lease("regroup-1_5e"),
            OPERATORS: {"items": [pod("regroup-0"), pod("regroup-1")]},
            f"{ours}coordinator": {"items": [pod("gpt-c1")]},
            f"{ours}worker": {"items": [pod("gpt-w0-1"), pod("starting"), pod("lost")]},
            f"{torch}worker": {"items": [pod("torch-w0-1")]},
        }
    )

    monkeypatch.setattr(watching.Site, "main_process", main_process)
    jobs = [
        Job(found, name, cast(Any, None), torchrun)
        for name, torchrun in (("gpt", False), ("torch", True))
    ]
    assert [(role, name) for role, name, _ in watched(found, tuple(jobs))] == [
        ("standby", "regroup-0 7-9"),
        ("operator", "regroup-1 7-9"),
        ("coordinator", "gpt-c1 7-6"),
        ("worker", "gpt-w0-1 7-8"),
    ]


@pytest.mark.parametrize(
    ("operators", "runs"),
    [(["starting", "regroup-1"], True), (["starting"], False), (["lost"], False), ([], False)],
    ids=str,
)
def test_an_operator_runs_when_a_pod_of_it_has_a_process(
    operators: list[str], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching.Site, "main_process", main_process)
    found = site({OPERATORS: {"items": [pod(name) for name in operators]}})
    assert found.operates() == runs
    assert not site({}).operates(), "nobody can be asked"


def test_a_worker_of_torchrun_without_a_node_or_a_process_does_not_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its status knows the index of a pod that no scheduler has seen, and of one that ended with
    its node or is only being started.
    """
    monkeypatch.setattr(watching.Site, "main_process", main_process)
    waiting = pod("torch-w1-2")
    del waiting["spec"]["nodeName"]
    names = ("torch-w0-1", "torch-w1-2", "starting", "lost")
    workers = [{"pod": name, "index": index} for index, name in enumerate(names)]
    found = site(
        {
            "/apis/regroup.dev/v1alpha1/namespaces/soak/trainingjobs/torch": {
                "status": {"workers": workers}
            },
            "regroup.dev/job=torch,regroup.dev/role=worker": {
                "items": [pod(names[0]), waiting, pod("starting"), pod("lost")]
            },
        }
    )
    job = Job(found, "torch", cast(Any, None), is_torchrun=True)
    assert job.workers() == [(0, pod(names[0]))]


@pytest.mark.parametrize(
    ("renewed", "ready", "back"),
    [
        ("2026-01-01T00:00:10.500000Z", True, True),
        ("2026-01-01T00:00:10.500000Z", False, False),
        ("2025-12-31T23:59:59.000000Z", True, False),
    ],
    ids=["lease renewed since", "not Ready yet", "still taken for Ready"],
)
def test_a_node_is_back_when_it_is_ready_and_renewed_its_lease_since(
    renewed: str, ready: bool, back: bool
) -> None:
    found = site({N1: {"spec": {"renewTime": renewed}}}, ready)
    assert found.is_back("n1", 1767225600.0) == back


def test_a_node_of_which_nothing_can_be_read_is_not_back() -> None:
    assert not site({}).is_back("n1", 0.0)


def test_a_cluster_is_repaired_once_all_its_nodes_are_ready() -> None:
    tries: list[None] = []

    def repair(_report: object) -> None:
        tries.append(None)
        if len(tries) == 1:
            raise DeadlineError("timed out after 120 s: 3 Ready nodes")

    cluster = SimpleNamespace(assembly=SimpleNamespace(repair=repair))
    found = Site(cast(DevclusterStage, SimpleNamespace(cluster=cluster)), "soak")
    assert [found.repair(), found.repair()] == [False, True]
