"""Objects that are not the job's and have the names of its own, on a real API server. The jobs are
made by a tenant who may do nothing else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from regroup_operator.api import names
from regroup_operator.api.resource import API_VERSION, KIND
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.credentials import login
from regroup_operator.errors import ConflictError, ObjectConflictError
from regroup_operator.observe.bounded_json import UndecodableError
from regroup_operator.observe.observed import Identity
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Answer, Api, Json, Namespace
from tests.support.operator_process import (
    Kubelets,
    OperatorProcess,
    apply,
    condition,
    make_claim,
)
from tests.support.specs import SMALLEST, put
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

FOREIGN: dict[str, tuple[str, str, Json]] = {
    "Service": (
        "/api/v1/namespaces/{}/services",
        "bank-coordinator",
        {"apiVersion": "v1", "spec": {"selector": {"app": "bank"}, "ports": [{"port": 80}]}},
    ),
    "NetworkPolicy": (
        "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
        "bank-isolated",
        {
            "apiVersion": "networking.k8s.io/v1",
            "spec": {"podSelector": {"matchLabels": {"app": "bank"}}, "policyTypes": ["Ingress"]},
        },
    ),
    "PodDisruptionBudget": (
        "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
        "bank-workers",
        {
            "apiVersion": "policy/v1",
            "spec": {"minAvailable": 7, "selector": {"matchLabels": {"app": "bank"}}},
        },
    ),
    "PersistentVolumeClaim": (
        "/api/v1/namespaces/{}/persistentvolumeclaims",
        "bank-checkpoints",
        {
            "apiVersion": "v1",
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "none",
            },
        },
    ),
}
"""Kind -> folder, the name that a job `bank` needs, and the object of another application."""
OWN_CLAIM = {
    "volumeClaimTemplate": {
        "spec": {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "none"}
    }
}


@pytest.fixture
def tenant(namespace: Namespace) -> str:
    """A user whose only right is to make and read TrainingJobs of one namespace."""
    arguments = ("--namespace", namespace.name)
    verbs, resource = "--verb=create,get,delete", "--resource=trainingjobs.regroup.dev"
    apply(namespace.api, "create", "role", "jobs", verbs, resource, *arguments)
    apply(
        namespace.api, "create", "rolebinding", "jobs", "--role=jobs", "--user=mallory", *arguments
    )
    return "mallory"


def submit(namespace: Namespace, tenant: str, spec: Json) -> None:
    """Create job `bank` as the tenant."""
    job = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "bank"}, "spec": spec}
    arguments = ("create", "--namespace", namespace.name, "--as", tenant, "-f", "-")
    apply(namespace.api, *arguments, stdin=json.dumps(job))


def ready(namespace: Namespace) -> Json:
    """The condition Ready of the job; empty while it has none."""
    conditions = namespace.read("bank").get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == "Ready"), {})


def event_reasons(namespace: Namespace) -> set[str]:
    """The reasons of all events."""
    items = namespace.api.request("GET", namespace.core("events")).body["items"]
    return {event["reason"] for event in items}


@pytest.mark.parametrize("kind", FOREIGN)
def test_an_object_of_another_application_is_named_and_neither_changed_nor_deleted(
    operator: OperatorProcess, namespace: Namespace, tenant: str, kind: str
) -> None:
    folder, name, body = FOREIGN[kind]
    folder = folder.format(namespace.name)
    made = namespace.api.request("POST", folder, {**body, "kind": kind, "metadata": {"name": name}})
    assert made.status == 201, made.message
    submit(namespace, tenant, put(SMALLEST, "checkpoint.storage", OWN_CLAIM))
    wait_until("the conflict", lambda: ready(namespace).get("reason") == "ObjectConflict")
    assert f"{kind} {name} " in ready(namespace)["message"]
    wait_until("a warning", lambda: "ObjectConflict" in event_reasons(namespace))
    assert Kubelets(namespace).pods() == {}
    arguments = ("--namespace", namespace.name, "--as", tenant)
    apply(namespace.api, "delete", "trainingjob", "bank", *arguments)
    present = namespace.api.request("GET", f"{folder}/{name}").body
    for part in ("spec", "metadata"):
        assert present[part] == made.body[part]


def test_the_job_goes_on_once_the_name_is_free(
    operator: OperatorProcess, namespace: Namespace, tenant: str
) -> None:
    folder, name, body = FOREIGN["Service"]
    folder = folder.format(namespace.name)
    namespace.api.request("POST", folder, {**body, "kind": "Service", "metadata": {"name": name}})
    make_claim(namespace)
    submit(namespace, tenant, SMALLEST)
    wait_until("the conflict", lambda: ready(namespace).get("reason") == "ObjectConflict")
    namespace.api.request("DELETE", f"{folder}/{name}")
    wait_until("four pods", lambda: len(Kubelets(namespace).pods()) == 4)


def test_a_claim_that_an_earlier_job_of_this_name_left_is_used_again(
    operator: OperatorProcess, namespace: Namespace, tenant: str
) -> None:
    folder, name, body = FOREIGN["PersistentVolumeClaim"]
    metadata = {"name": name, "labels": {"regroup.dev/job": "bank"}}
    claim = {**body, "kind": "PersistentVolumeClaim", "metadata": metadata}
    namespace.api.request("POST", folder.format(namespace.name), claim)
    submit(namespace, tenant, put(SMALLEST, "checkpoint.storage", OWN_CLAIM))
    wait_until("four pods", lambda: len(Kubelets(namespace).pods()) == 4)


def test_a_service_that_takes_the_name_of_a_running_jobs_is_left_alone(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    path = namespace.core("services/gpt-coordinator")
    body = {"kind": "Service", "metadata": {"name": "gpt-coordinator"}, **FOREIGN["Service"][2]}
    made = wait_until("the name", lambda: replace(namespace, path, body))
    stub.report(phase="recovering")
    wait_until("the conflict", lambda: condition(namespace, "Ready")["reason"] == "ObjectConflict")
    assert namespace.api.request("GET", path).body["spec"] == made.body["spec"]
    assert len(kubelets.pods()) == 4


def replace(namespace: Namespace, path: str, body: Json) -> Answer | None:
    """Put another Service in the place of one; None where the operator was quicker with its own."""
    namespace.api.request("DELETE", path)
    made = namespace.api.request("POST", namespace.core("services"), body)
    assert made.status in (201, 409), made.message
    return made if made.status == 201 else None


def test_a_pod_that_is_too_large_to_read_holds_the_job_with_its_label_until_it_is_gone(
    operator: OperatorProcess, namespace: Namespace, tenant: str
) -> None:
    container = {"name": "a", "image": "a", "args": ["<" * 1_000_000]}  # six bytes each in JSON
    pod: Json = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]}}
    pod["metadata"] = {"name": "big", "labels": {names.JOB: "bank"}}
    make_claim(namespace)
    submit(namespace, tenant, {**SMALLEST, "suspend": True})
    wait_until("the suspension", lambda: ready(namespace).get("reason") == "Suspended")
    with pytest.raises(UndecodableError):  # the answer holds the pod
        namespace.api.request("POST", namespace.core("pods"), pod)
    wait_until("the conflict", lambda: ready(namespace).get("reason") == "ObjectConflict")
    assert "cannot read pod big" in ready(namespace)["message"]
    wait_until("a warning", lambda: "ObjectConflict" in event_reasons(namespace))
    here = ("--namespace", namespace.name)
    resumed = ("--type=merge", "--patch", '{"spec": {"suspend": false}}')
    apply(namespace.api, "patch", "trainingjob", "bank", *here, *resumed)
    wait_until("a look at the resumed job", lambda: ready(namespace)["observedGeneration"] == 2)
    assert ready(namespace)["reason"] == "ObjectConflict"
    made = namespace.core(f"pods?labelSelector={names.ROLE}")
    assert namespace.api.request("GET", made).body["items"] == []
    apply(
        namespace.api, "delete", "pod", "big", *here, "--force", "--grace-period=0", "--wait=false"
    )
    wait_until("four pods", lambda: len(Kubelets(namespace).pods()) == 4)


HOSTILE_NAMES = (
    "../../victimns/persistentvolumeclaims/payroll",
    "..%2f..%2fvictimns%2fpersistentvolumeclaims%2fpayroll",
    "%2e%2e/%2e%2e/victimns/persistentvolumeclaims/payroll",
    "payroll?x=1#",
    "payroll#",
    "..",
)


@pytest.fixture
def victim(api: Api) -> Iterator[Namespace]:
    """A namespace that is none of the tenant's business, with a claim."""
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": "victimns"}})
    namespace = Namespace(api, "victimns")
    folder, _, body = FOREIGN["PersistentVolumeClaim"]
    claim = {**body, "kind": "PersistentVolumeClaim", "metadata": {"name": "payroll"}}
    api.request("POST", folder.format("victimns"), claim)
    yield namespace
    api.request("DELETE", namespace.core("persistentvolumeclaims/payroll"))


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_the_name_of_a_claim_must_be_a_name(namespace: Namespace, name: str) -> None:
    storage = {"persistentVolumeClaim": {"claimName": name}}
    answer = namespace.create(put(SMALLEST, "checkpoint.storage", storage))
    assert answer.status == 422
    assert "claimName" in answer.message


SPACES = {
    "a claim": (
        put(SMALLEST, "checkpoint.storage.persistentVolumeClaim.claimName", "payroll"),
        "ClaimMissing",
    ),
    "a template": (
        put(SMALLEST, "template", {"metadata": {"namespace": "victimns"}}),
        "InvalidSpec",
    ),
}
"""How a job points to another namespace, and the reason that it gets."""


@pytest.mark.parametrize("how", SPACES)
def test_a_job_that_points_to_another_namespace_gets_nothing_there(
    operator: OperatorProcess, namespace: Namespace, tenant: str, victim: Namespace, how: str
) -> None:
    def things() -> list[Json]:
        kinds = ("pods", "services", "secrets", "persistentvolumeclaims")
        found = [victim.api.request("GET", victim.core(kind)).body["items"] for kind in kinds]
        return [item for items in found for item in items]

    before = things()
    spec, reason = SPACES[how]
    submit(namespace, tenant, spec)
    wait_until(f"reason {reason}", lambda: ready(namespace).get("reason") == reason)
    assert things() == before
    assert Kubelets(namespace).pods() == {}


@pytest.fixture
async def cluster(api: Api, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """The operator's client with every right there is."""
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    async with Cluster(login) as cluster:
        yield cluster


@pytest.mark.parametrize("name", HOSTILE_NAMES)
async def test_no_name_leads_to_another_namespace(
    cluster: Cluster, namespace: Namespace, victim: Namespace, name: str
) -> None:
    assert await cluster.claim(victim.name, "payroll") is not None
    assert await cluster.claim(namespace.name, name) is None
    assert await cluster.node(name) is None
    with pytest.raises(ValueError, match="cannot be the name of an object"):
        await cluster.delete_pod(namespace.name, name, "uid")


_numbers = itertools.count(1)


async def test_a_change_reaches_only_the_object_in_the_state_that_was_read(
    cluster: Cluster, namespace: Namespace
) -> None:
    name = f"s{next(_numbers)}"
    ports, policy = [{"port": 80}], {"internalTrafficPolicy": "Cluster"}
    spec = {"selector": {"a": "1"}, "ports": ports, **policy}
    body: Json = {"apiVersion": "v1", "kind": "Service", "spec": spec}
    body["metadata"] = {"name": name, "namespace": namespace.name}
    await cluster.create_service(body)
    with pytest.raises(ObjectConflictError, match=f"Service {name} is not of this job"):
        await cluster.create_service(body)
    first = await cluster.service(namespace.name, name)
    assert first is not None
    read = Identity(first["metadata"]["uid"], first["metadata"]["resourceVersion"])
    await cluster.change_service({**body, "spec": {**spec, "selector": {"a": "2"}}}, read)
    for stale in (read, Identity("another", read.version)):
        with pytest.raises(ConflictError):
            await cluster.change_service(body, stale)
    namespace.api.request("DELETE", namespace.core(f"services/{name}"))
    await cluster.create_service({**body, "spec": {**spec, "selector": {"a": "3"}}})
    with pytest.raises(ConflictError):
        await cluster.change_service(body, read)
    third = await cluster.service(namespace.name, name)
    assert third is not None
    assert third["spec"]["selector"] == {"a": "3"}
