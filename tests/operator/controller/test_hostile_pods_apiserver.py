"""Pods that no ordinary decoder survives, on a real API server: jobs of others go on at once, also
under an operator that starts beside them.
"""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from regroup_operator.api import names
from regroup_operator.controller.handlers import PROBES_AT_ONCE
from tests.support.kube_api import Answer, Json, Namespace
from tests.support.operator_process import Kubelets, OperatorProcess, make_claim
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

DEPTHS = (300, 1_000, 3_000, 9_000)
AT_ONCE_SECONDS = 10.0


def create_deep_pod(namespace: Namespace, levels: int) -> Answer:
    """A pod with the label of a job. The user who makes it writes its managedFields, and the API
    server keeps them.
    """
    written = {
        "manager": "mallory",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": "HERE",
    }
    labels = {names.JOB: "none"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"deep{levels}", "labels": labels, "managedFields": [written]},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }
    fields = '{"f:a":' * levels + "{}" + "}" * levels
    body = json.dumps(pod).replace('"HERE"', fields)
    return namespace.api.request("POST", namespace.core("pods"), body)


def starts_at_once(namespace: Namespace, job: str) -> None:
    """Create an ordinary job and wait for its pods."""
    assert namespace.create(SMALLEST, job).status == 201

    def has_its_pods() -> bool:
        items = namespace.api.request("GET", namespace.core("pods")).body["items"]
        return len([pod for pod in items if pod["metadata"]["labels"][names.JOB] == job]) == 4

    wait_until(f"the pods of {job}", has_its_pods, seconds=AT_ONCE_SECONDS)


def test_pods_with_deep_managed_fields_end_no_operator(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    make_claim(namespace)
    for levels in DEPTHS:
        made = create_deep_pod(namespace, levels)
        assert made.status == 201, made.message
    starts_at_once(namespace, "one")
    operator.kill(namespace.api)
    operator.start()
    starts_at_once(namespace, "after-a-kill")
    operator.stop()
    operator.start()
    starts_at_once(namespace, "after-an-end")
    assert "Traceback" not in operator.log.read_text()


NO_LABEL: Json = {"labels": {names.JOB: None}}
NO_OWNER: Json = {"ownerReferences": []}


@pytest.mark.parametrize(
    ("taken", "advice"),
    [
        (NO_LABEL, "stop what edits labels"),
        (NO_OWNER, "stop what changes owners"),
        ({**NO_LABEL, **NO_OWNER}, "stop what changes owners"),
    ],
    ids=["label", "owner", "both"],
)
def test_who_takes_each_new_pod_from_its_job_makes_new_ones_come_ever_later_and_is_named(
    operator: OperatorProcess, namespace: Namespace, taken: Json, advice: str
) -> None:
    make_claim(namespace)
    assert namespace.create(SMALLEST).status == 201
    made: set[str] = set()

    def counted_them() -> bool:
        for name in Kubelets(namespace).pods().keys() - made:
            made.add(name)
            path, merge = namespace.core(f"pods/{name}"), "application/merge-patch+json"
            assert namespace.api.request("PATCH", path, {"metadata": taken}, merge).status == 200
        return int(namespace.read().get("status", {}).get("podFailures", 0)) >= 4

    wait_until("four failures in a row", counted_them)
    assert len(made) <= 4 * 4
    events = namespace.api.request("GET", namespace.core("events")).body["items"]
    messages = [each["message"] for each in events if each["reason"] == "PodUnreadable"]
    assert any("pod gpt-w0-1 takes no part" in message for message in messages)
    assert all(advice in message for message in messages)


def test_idle_connections_to_the_port_of_probes_are_bounded(operator: OperatorProcess) -> None:
    with contextlib.ExitStack() as stack:
        flood = [
            stack.enter_context(socket.create_connection(("127.0.0.1", operator.health_port)))
            for _ in range(2 * PROBES_AT_ONCE)
        ]
        flood[0].settimeout(10)
        with contextlib.suppress(ConnectionError):
            assert flood[0].recv(1) == b"", "it is closed"
        operator.wait_until_healthy()
