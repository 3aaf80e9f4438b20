"""The operator's key on a real API server, with the rights that the chart gives: made, rotated,
missed.
"""

from __future__ import annotations

import asyncio
import base64

import pytest

from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.credentials import login
from regroup_operator.controller.operator_key import read_or_make_keys
from regroup_operator.render.keyring import name_of
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Api, Json, Namespace
from tests.support.operator_process import RELEASE, Kubelets, OperatorProcess, apply, condition
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

SECRET = f"/api/v1/namespaces/{RELEASE}/secrets/regroup-key"
NEW = b"the key of tomorrow, of enough bytes"


def entries(api: Api) -> dict[str, bytes]:
    answer = api.request("GET", SECRET)
    assert answer.status == 200, answer.message
    return {name: base64.b64decode(text) for name, text in answer.body["data"].items()}


def change(api: Api, **changes: bytes | None) -> None:
    """Set entries of the operator's Secret; None: remove."""
    data: Json = {
        name.replace("_", "-"): value and base64.b64encode(value).decode()
        for name, value in changes.items()
    }
    answer = api.request("PATCH", SECRET, {"data": data}, "application/merge-patch+json")
    assert answer.status == 200, answer.message


def restart(operator: OperatorProcess) -> None:
    assert operator.stop() == 0
    operator.start()


def test_running_jobs_keep_their_key_when_it_is_rotated(
    operator: OperatorProcess, namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    api, (_, stub) = namespace.api, running
    old = entries(api)["key"]
    assert namespace.read()["status"]["tokenKey"] == name_of(old)
    before = set(stub.tokens)

    change(api, key=NEW, former_2026=old)
    stub.tokens.clear()
    restart(operator)
    wait_until("a request with the former key's token", lambda: stub.tokens)
    assert stub.tokens == before
    assert namespace.create(SMALLEST, "next").status == 201
    wait_until("a new job", lambda: namespace.read("next").get("status", {}).get("tokenKey"))
    assert namespace.read("next")["status"]["tokenKey"] == name_of(NEW)
    assert condition(namespace, "Ready")["status"] == "True"

    change(api, former_2026=None)
    restart(operator)
    wait_until(
        "a word about it", lambda: condition(namespace, "Ready").get("reason") == "KeyMissing"
    )
    assert f"key {name_of(old)}, which is not in Secret" in condition(namespace, "Ready")["message"]
    stub.tokens.clear()
    change(api, former_again=old)
    restart(operator)
    wait_until("a job that is ready", lambda: condition(namespace, "Ready")["status"] == "True")
    assert stub.tokens == before


def test_operators_that_start_at_the_same_time_have_one_key(
    operator: OperatorProcess, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))

    async def make() -> set[str]:
        async with Cluster(login) as cluster:
            place = f"{RELEASE}/contested"
            made = await asyncio.gather(*(read_or_make_keys(cluster, place) for _ in range(8)))
            return {keys.current for keys in made}

    assert len(asyncio.run(make())) == 1


def test_the_operator_may_read_no_other_secret(operator: OperatorProcess, api: Api) -> None:
    account = f"system:serviceaccount:{RELEASE}:regroup"

    def may(verb: str, what: str, where: str) -> bool:
        attributes = {"verb": verb, "resource": "secrets", "name": what, "namespace": where}
        review = {
            "kind": "LocalSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "metadata": {"namespace": where},
            "spec": {"user": account, "resourceAttributes": attributes},
        }
        path = f"/apis/authorization.k8s.io/v1/namespaces/{where}/localsubjectaccessreviews"
        return bool(api.request("POST", path, review).body["status"]["allowed"])

    assert may("get", "regroup-key", RELEASE)
    assert not may("get", "other", RELEASE)
    assert not may("list", "", RELEASE)
    assert not may("get", "regroup-key", "default")
    assert not may("patch", "regroup-key", RELEASE)
    assert apply(api, "get", "secret", "regroup-key", "--namespace", RELEASE)
