"""A job on a real API server whose workers run, as its coordinator reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Namespace
from tests.support.operator_process import NODES, Kubelets, make_claim, make_node, member
from tests.support.operator_simulation import make_coordinator_status
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until


@contextmanager
def running_job(namespace: Namespace) -> Iterator[tuple[Kubelets, CoordinatorStub]]:
    """Inside, the job `gpt` has three workers. An operator must run."""
    for node in NODES:
        make_node(namespace.api, node)
    make_claim(namespace)
    assert namespace.create(SMALLEST).status == 201
    kubelets = Kubelets(namespace)
    wait_until("four pods", lambda: len(kubelets.pods()) == 4)
    workers = [
        kubelets.run(name, node)
        for name, node in zip(sorted(kubelets.pods("worker")), NODES, strict=True)
    ]
    members = tuple(member(pod, rank) for rank, pod in enumerate(workers))
    with CoordinatorStub(make_coordinator_status(members=members)) as stub:
        kubelets.run("gpt-c1", "n1", stub.address)
        wait_until("a running job", lambda: namespace.read()["status"].get("phase") == "Running")
        yield kubelets, stub
