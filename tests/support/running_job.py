"""A job on a real API server whose workers run, as its coordinator reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import NODES, Kubelets, make_claim, make_node, member
from tests.support.operator_simulation import make_coordinator_status
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until


def start_job(namespace: Namespace, spec: Json = SMALLEST, seconds: float = 30.0) -> Kubelets:
    """Create the job `gpt`, and wait for its coordinator's pod and those of its three workers. An
    operator must run.
    """
    for node in NODES:
        make_node(namespace.api, node)
    make_claim(namespace)
    assert namespace.create(spec).status == 201
    kubelets = Kubelets(namespace)
    wait_until("four pods", lambda: len(kubelets.pods()) == 4, seconds)
    return kubelets


def run_workers(kubelets: Kubelets) -> list[Json]:
    """Have the workers run, each on a node of its own. Returns their pods."""
    names = sorted(kubelets.pods("worker"))
    return [kubelets.run(name, node) for name, node in zip(names, NODES, strict=True)]


@contextmanager
def running_job(namespace: Namespace) -> Iterator[tuple[Kubelets, CoordinatorStub]]:
    """Inside, the job `gpt` has three workers. An operator must run."""
    kubelets = start_job(namespace)
    members = tuple(member(pod, rank) for rank, pod in enumerate(run_workers(kubelets)))
    with CoordinatorStub(make_coordinator_status(members=members)) as stub:
        kubelets.run("gpt-c1", "n1", stub.address)
        wait_until("a running job", lambda: namespace.read()["status"].get("phase") == "Running")
        yield kubelets, stub
