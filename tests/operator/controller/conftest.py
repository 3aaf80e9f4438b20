"""One operator for the tests of a file, and a job that it runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import ROOT, Api, Namespace
from tests.support.operator_process import (
    NODES,
    RELEASE,
    Kubelets,
    OperatorProcess,
    apply,
    make_claim,
    make_node,
    member,
    run,
)
from tests.support.operator_simulation import make_coordinator_status
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def operator(api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """The operator under the chart's service account."""
    folder = tmp_path_factory.mktemp("operator")
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": RELEASE}})
    chart, rbac = str(ROOT / "charts/regroup"), "templates/rbac.yaml"
    rendered = run(
        "helm", "template", "regroup", chart, "--namespace", RELEASE, "--show-only", rbac
    )
    apply(api, "apply", "-f", "-", stdin=rendered)
    token = apply(api, "create", "token", "regroup", "--namespace", RELEASE).strip()
    config = yaml.safe_load(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    process = OperatorProcess(folder / "kubeconfig", folder)
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
