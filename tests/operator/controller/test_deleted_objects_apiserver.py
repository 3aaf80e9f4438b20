"""What the operator makes again when somebody deletes it, or has made it of no use, on a real API
server.
"""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler

import pytest

from regroup_trainer.protocol.environment import AGENT_METRICS_PORT
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Json, Namespace
from tests.support.loopback_server import LoopbackServer, QuietHandler
from tests.support.operator_process import Kubelets, OperatorProcess
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

Running = tuple[Kubelets, CoordinatorStub]


def secrets(namespace: Namespace) -> dict[str, Json]:
    """The Secrets of the namespace, by name."""
    items = namespace.api.request("GET", namespace.core("secrets")).body["items"]
    return {secret["metadata"]["name"]: secret for secret in items}


def delete_secrets(namespace: Namespace) -> dict[str, Json]:
    """Delete all Secrets; what they were."""
    former = secrets(namespace)
    for name in former:
        namespace.api.request("DELETE", namespace.core(f"secrets/{name}"))
    assert not secrets(namespace)
    return former


def test_a_deleted_token_is_there_again_when_a_worker_is_made(
    namespace: Namespace, running: Running
) -> None:
    kubelets, _ = running
    former = delete_secrets(namespace)
    namespace.api.request("DELETE", namespace.core("pods/gpt-w2-1"), {"gracePeriodSeconds": 0})
    wait_until("a replacement", lambda: "gpt-w2-2" in kubelets.pods())
    made = secrets(namespace)
    assert {name: secret["data"] for name, secret in made.items()} == {
        name: secret["data"] for name, secret in former.items()
    }


def test_a_token_that_is_deleted_while_a_pod_waits_for_its_containers_is_made_again(
    namespace: Namespace, running: Running
) -> None:
    kubelets, _ = running
    namespace.api.request("DELETE", namespace.core("pods/gpt-w2-1"), {"gracePeriodSeconds": 0})
    wait_until("a replacement", lambda: "gpt-w2-2" in kubelets.pods())
    delete_secrets(namespace)
    kubelets.bind("gpt-w2-2", "n3")
    waiting = {"reason": "ContainerCreating"}
    main: Json = {"name": "trainer", "image": "a", "imageID": "", "ready": False}
    main |= {"restartCount": 0, "state": {"waiting": waiting}}
    kubelets.write("gpt-w2-2", {"phase": "Pending", "containerStatuses": [main]})
    wait_until("the Secret", lambda: secrets(namespace), seconds=30)


def service(namespace: Namespace) -> Json:
    """The Service in front of the coordinator; empty where there is none."""
    answer = namespace.api.request("GET", namespace.core("services/gpt-coordinator"))
    return answer.body if answer.status == 200 else {}


def test_a_deleted_service_gets_its_former_address_again_and_keeps_it_under_the_next_term(
    namespace: Namespace, running: Running
) -> None:
    kubelets, stub = running
    former = service(namespace)["spec"]["clusterIP"]
    assert namespace.read()["status"]["serviceAddress"] == former
    namespace.api.request("DELETE", namespace.core("services/gpt-coordinator"))
    stub.report(phase="recovering")
    wait_until("a Service", lambda: service(namespace), seconds=60)
    assert service(namespace)["spec"]["clusterIP"] == former
    namespace.api.request("DELETE", namespace.core("pods/gpt-c1"), {"gracePeriodSeconds": 0})
    wait_until("the next coordinator", lambda: "gpt-c2" in kubelets.pods())
    spec = wait_until(
        "the next term",
        lambda: (s := service(namespace)["spec"])["selector"]["regroup.dev/term"] == "2" and s,
    )
    assert spec["clusterIP"] == former


ELSEWHERE: Json = {"type": "ExternalName", "externalName": "other.example", "clusterIP": None}
HEADLESS: Json = {"type": "ClusterIP", "externalName": None, "clusterIP": "None"}


@pytest.mark.parametrize(
    "edits", [(ELSEWHERE,), (ELSEWHERE, HEADLESS)], ids=("ExternalName", "headless")
)
def test_a_service_that_has_lost_its_address_is_made_again_with_it(
    namespace: Namespace, running: Running, edits: tuple[Json, ...]
) -> None:
    kubelets, stub = running
    former = service(namespace)
    for spec in edits:
        path, merge = namespace.core("services/gpt-coordinator"), "application/merge-patch+json"
        answer = namespace.api.request("PATCH", path, {"spec": spec}, merge)
        assert answer.status == 200, answer.message
    stub.report(phase="recovering")
    made = wait_until(
        "the address",
        lambda: (s := service(namespace)) and s["spec"].get("clusterIP", "None") != "None" and s,
        seconds=60,
    )
    assert made["spec"] == former["spec"]
    assert {"gpt-w0-1", "gpt-w1-1", "gpt-w2-1"} == set(kubelets.pods("worker"))


class AgentStub(LoopbackServer):
    """The endpoint of a worker pod: keeps what the operator sends to it."""

    def __init__(self, address: str) -> None:
        self.received: list[tuple[str, str, str]] = []
        """Path, Authorization and body."""
        super().__init__(address, AGENT_METRICS_PORT)

    def _handler(stub) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(QuietHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                stub.received.append((self.path, self.headers.get("Authorization", ""), body))
                self.send_response(204)
                self.end_headers()

        return Handler


@pytest.fixture
def agent() -> Iterator[AgentStub]:
    """The agent of one worker."""
    with AgentStub("127.0.83.250") as stub:
        yield stub


@pytest.mark.long
def test_where_its_address_is_taken_workers_are_sent_the_new_one_or_replaced(
    operator: OperatorProcess, namespace: Namespace, running: Running, agent: AgentStub
) -> None:
    kubelets, stub = running
    former = service(namespace)["spec"]["clusterIP"]
    for name, address in (("gpt-w0-1", "127.0.83.250"), ("gpt-w1-1", "127.0.83.251")):
        kubelets.write(name, {"podIP": address, "podIPs": [{"ip": address}]})
    operator.kill(namespace.api)
    namespace.api.request("DELETE", namespace.core("services/gpt-coordinator"))
    port = {"port": 80, "protocol": "TCP"}
    other = {"metadata": {"name": "other"}, "spec": {"clusterIP": former, "ports": [port]}}
    body = {"apiVersion": "v1", "kind": "Service", **other}
    answer = namespace.api.request("POST", namespace.core("services"), body)
    assert answer.status == 201, answer.message
    members = stub._status.members
    stub.report(members=members[2:])  # the others have not found it
    operator.start()
    wait_until("a Service", lambda: service(namespace))
    present = service(namespace)["spec"]["clusterIP"]
    assert present != former
    path, authorization, url = wait_until("the new address", lambda: agent.received)[0]
    assert path == "/v1/coordinator"
    assert {authorization} == stub.tokens
    assert f"http://{present}:8471" in url
    assert "gpt-w1-1" in kubelets.pods()
    stub.report(members=(members[0], members[2]))
    wait_until("the replacement of who was not reached", lambda: "gpt-w1-2" in kubelets.pods(), 60)
    assert {"gpt-w0-1", "gpt-w2-1"} <= set(kubelets.pods())
    assert namespace.read()["status"]["serviceAddress"] == present
    assert namespace.read()["status"].get("suspectedNodes", []) == []
