"""TrainingJobs that no ordinary decoder survives, on a real API server: they are named, and all
others go on at once, also under an operator that starts beside them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest

from regroup_operator.api.resource import API_VERSION, KIND
from tests.support.kube_api import Answer, Api, Json, Namespace
from tests.support.operator_process import Kubelets, OperatorProcess, condition, make_claim
from tests.support.specs import SMALLEST, put
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver

DEPTHS = (300, 1_400, 5_000, 9_000, 9_999)
AT_ONCE_SECONDS = 10.0


def nested(levels: int) -> str:
    """JSON of so many objects in one another."""
    return '{"a":' * levels + "1" + "}" * levels


def hostile(levels: int) -> str:
    """The JSON of a spec with a template that deep."""
    spec = put(SMALLEST, "template", {"spec": "HERE"})
    return json.dumps(spec).replace('"HERE"', nested(levels))


def create(namespace: Namespace, name: str, spec: str) -> Answer:
    """Create a TrainingJob from the JSON of its spec."""
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}
    body = f'{json.dumps(document)[:-1]}, "spec": {spec}}}'
    return namespace.api.request("POST", namespace.jobs(), body)


def ready(namespace: Namespace, name: str) -> Json:
    """The condition Ready of a job; empty while it has none."""
    conditions = namespace.read(name).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == "Ready"), {})


def named(namespace: Namespace) -> set[str]:
    """The jobs that an event calls invalid."""
    items = namespace.api.request("GET", namespace.core("events")).body["items"]
    return {e["involvedObject"]["name"] for e in items if e["reason"] == "InvalidSpec"}


def starts_at_once(namespace: Namespace, name: str) -> None:
    """Create an ordinary job and wait for its pods."""
    assert namespace.create(SMALLEST, name).status == 201

    def has_its_pods() -> bool:
        return len([pod for pod in Kubelets(namespace).pods() if pod.startswith(name)]) == 4

    wait_until(f"the pods of {name}", has_its_pods, seconds=AT_ONCE_SECONDS)


_numbers = itertools.count(1)


@pytest.fixture
def hostile_namespace(api: Api) -> Iterator[Namespace]:
    """The namespace of another tenant. Its jobs are deleted afterwards."""
    namespace = Namespace(api, f"hostile-{next(_numbers)}")
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace.name}})
    yield namespace
    answer = api.request("DELETE", namespace.jobs())
    assert answer.status == 200, answer.message


def test_deep_objects_are_named_and_others_go_on_at_once(
    operator: OperatorProcess, namespace: Namespace, hostile_namespace: Namespace
) -> None:
    make_claim(namespace)
    make_claim(hostile_namespace)
    answers = {f"deep{n}": create(hostile_namespace, f"deep{n}", hostile(n)) for n in DEPTHS}
    taken = {name for name, answer in answers.items() if answer.status == 201}
    assert {"deep300", "deep1400", "deep5000", "deep9000"} <= taken
    starts_at_once(namespace, "one")
    wait_until("their names", lambda: named(hostile_namespace) == taken)
    for name in taken:
        assert ready(hostile_namespace, name)["reason"] == "InvalidSpec"
        assert hostile_namespace.read(name)["metadata"]["generation"] == 1, "nothing is cut off it"
        message = ready(hostile_namespace, name)["message"]
        assert "spec.template: more than 50 objects and lists lie in one another" in message
    assert Kubelets(hostile_namespace).pods() == {}
    operator.kill(namespace.api)
    operator.start()
    starts_at_once(namespace, "after-a-kill")
    operator.stop()
    operator.start()
    starts_at_once(namespace, "after-an-end")
    assert "Traceback" not in operator.log.read_text()


def test_a_deep_job_can_be_mended(operator: OperatorProcess, namespace: Namespace) -> None:
    make_claim(namespace)
    assert create(namespace, "gpt", hostile(3_000)).status == 201
    wait_until("the refusal", lambda: ready(namespace, "gpt").get("reason") == "InvalidSpec")
    change(namespace, {"suspend": True})
    wait_until("a suspended job", lambda: condition(namespace, "Suspended").get("status") == "True")
    change(namespace, {"suspend": False, "template": None})
    wait_until("four pods", lambda: len(Kubelets(namespace).pods()) == 4)


def change(namespace: Namespace, spec: Json) -> None:
    """Change these fields of the spec of job `gpt`."""
    kind = "application/merge-patch+json"
    answer = namespace.api.request("PATCH", namespace.jobs("gpt"), {"spec": spec}, kind)
    assert answer.status == 200, answer.message
