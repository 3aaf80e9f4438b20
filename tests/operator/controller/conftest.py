"""One operator for the tests of a file, and a job that it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Api, Namespace
from tests.support.operator_process import (
    NODES,
    Kubelets,
    OperatorProcess,
    installed_operator,
    make_claim,
    make_node,
    member,
)
from tests.support.operator_simulation import make_coordinator_status
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def operator(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """The operator under the chart's service account."""
    process = installed_operator(api, tmp_path_factory.mktemp("operator"))
    process.start()
    yield process
    assert process.stop() == 0
    assert "Forbidden" not in process.log.read_text()
    assert "Traceback" not in process.log.read_text()


@pytest.fixture
def running(
    operator: OperatorProcess, namespace: Namespace
) -> Iterator[tuple[Kubelets, CoordinatorStub]]:
    """A job whose three workers run, as its coordinator reports."""
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
