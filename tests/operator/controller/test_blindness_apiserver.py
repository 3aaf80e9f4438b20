"""What the operator does not see is no evidence: after a refused request or a restart, among many
jobs. On a real API server.
"""

from __future__ import annotations

import threading

import pytest

from regroup_trainer.protocol.job_status import Outcome
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import Kubelets, OperatorProcess, condition
from tests.support.specs import SMALLEST, put
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver


def limit_pods(namespace: Namespace, hard: int, used: int) -> None:
    """A quota, with the status that its controller would write."""
    spec = {"hard": {"pods": str(hard)}}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": spec}
    namespace.api.request("POST", namespace.core("resourcequotas"), body)
    status: Json = {"status": {**spec, "used": {"pods": str(used)}}}
    path = namespace.core("resourcequotas/few/status")
    answer = namespace.api.request("PATCH", path, status, "application/merge-patch+json")
    assert answer.status == 200, answer.message


def test_a_refused_pod_keeps_no_coordinator_from_being_followed(
    operator: OperatorProcess, namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    _, stub = running
    limit_pods(namespace, hard=4, used=4)
    namespace.replace_spec(put(SMALLEST, "replicas", 4), dry_run=False)
    wait_until("the refusal", lambda: condition(namespace, "Ready")["reason"] == "QuotaExceeded")
    assert "exceeded quota" in condition(namespace, "Ready")["message"]
    wait_until("the newer spec all the same", lambda: stub.desired)
    operator.kill(namespace.api)
    operator.start()
    wait_until(
        "the next refusal", lambda: condition(namespace, "Ready")["reason"] == "QuotaExceeded"
    )
    stub.report(phase="completed", outcome=Outcome(result="completed", message="trained 500 steps"))
    wait_until("completion", lambda: condition(namespace, "Complete").get("status") == "True")


def shown(namespace: Namespace) -> tuple[str, str, tuple[int | None, ...]]:
    """Message, Ready and ranks."""
    status = namespace.read()["status"]
    ready = next(c["status"] for c in status["conditions"] if c["type"] == "Ready")
    return status["message"], ready, tuple(worker.get("rank") for worker in status["workers"])


def test_a_restart_writes_nothing_that_it_does_not_know(
    operator: OperatorProcess, namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    _, stub = running
    before = shown(namespace)
    assert before == ("training", "True", (0, 1, 2))
    operator.kill(namespace.api)
    stub.answers.clear()
    stub.tokens.clear()
    seen, ends = set[tuple[str, str, tuple[int | None, ...]]](), threading.Event()

    def look() -> None:
        while not ends.is_set():
            seen.add(shown(namespace))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        operator.start()
        wait_until("a question to the coordinator", lambda: stub.tokens)
        stub.answers.set()
        stub.report(phase="recovering", message="recovering")
        wait_until("its answer", lambda: shown(namespace)[0] == "recovering")
    finally:
        ends.set()
        looking.join()
    assert {what for what in seen if what[0] != "recovering"} == {before}
