"""Admission webhooks that change our pods, refuse them, or are away, on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from regroup_trainer.system.machine_address import free_port
from tests.support.admission_webhook import NAME, AdmissionWebhook, Review, Verdict, admission
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import (
    Kubelets,
    OperatorProcess,
    condition,
    make_claim,
    member,
)
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver
ROUNDS = 5
REFUSALS = 5
FEWEST_SECONDS = 0.2 + 0.4 + 0.8 + 1.6
"""The pauses between so many refusals in a row."""
ALL_PODS = {"gpt-c1", "gpt-w0-1", "gpt-w1-1", "gpt-w2-1"}
SIDECAR = {"name": "proxy", "image": "mesh.example/proxy:1"}


def inject(pod: Json) -> Verdict:
    """What a service mesh does, and a policy that has all images from a mirror."""
    metadata, spec = pod["metadata"], pod["spec"]
    images = [
        replacing(f"/spec/containers/{place}/image", f"mirror.example/{container['image']}")
        for place, container in enumerate(spec["containers"])
    ]
    toleration = {"key": "spot", "operator": "Exists"}
    return [
        *images,
        adding("/metadata/annotations", {**metadata.get("annotations", {}), "mesh": "injected"}),
        adding("/metadata/labels", {**metadata.get("labels", {}), "mesh": "injected"}),
        adding("/spec/tolerations", [*spec.get("tolerations", []), toleration]),
        adding("/spec/containers/0", SIDECAR),
    ]


def strip(pod: Json) -> Verdict:
    """A policy that takes what it does not know: our variables, annotations and affinity."""
    containers = pod["spec"]["containers"]
    return [
        *(adding(f"/spec/containers/{place}/env", []) for place in range(len(containers))),
        replacing("/spec/containers/0/image", "example/other:1"),
        adding("/metadata/annotations", {}),
        adding("/spec/affinity", {}),
    ]


def adding(path: str, value: object) -> Json:
    return {"op": "add", "path": path, "value": value}


def replacing(path: str, value: object) -> Json:
    return {"op": "replace", "path": path, "value": value}


@pytest.fixture
def webhook(namespace: Namespace, request: pytest.FixtureRequest) -> Iterator[AdmissionWebhook]:
    """The webhook, which the API server asks from now on."""
    review: Review = request.param
    with AdmissionWebhook(namespace, review) as webhook, admission(namespace, webhook.port):
        yield webhook


def writes(operator: OperatorProcess, namespace: Namespace) -> tuple[float, float, str]:
    """Objects made and deleted, and the version of the job, which its status raises."""
    made = operator.total("rest_client_requests_total", method="POST")
    deleted = operator.total("rest_client_requests_total", method="DELETE")
    return made, deleted, namespace.read()["metadata"]["resourceVersion"]


def have_a_round(operator: OperatorProcess, namespace: Namespace, path: str, touch: str) -> None:
    """Give the operator a reason to look at the job, and wait until it has done so. `touch`: what
    is written to the object at this path.
    """
    before = operator.total("controller_runtime_reconcile_total")
    change = {"metadata": {"annotations": {"touched": touch}}}
    answer = namespace.api.request("PATCH", path, change, "application/merge-patch+json")
    assert answer.status == 200, answer.message
    wait_until("a round", lambda: operator.total("controller_runtime_reconcile_total") > before)


def have_rounds(operator: OperatorProcess, namespace: Namespace) -> None:
    """The same a few times."""
    for number in range(ROUNDS):
        have_a_round(operator, namespace, namespace.core("pods/gpt-w0-1"), str(number))


@pytest.mark.parametrize("webhook", [inject], indirect=True)
def test_a_job_trains_beside_a_webhook_that_injects_and_writes_nothing_more(
    operator: OperatorProcess,
    namespace: Namespace,
    webhook: AdmissionWebhook,
    running: tuple[Kubelets, CoordinatorStub],
) -> None:
    kubelets, stub = running
    for pod in kubelets.pods().values():
        assert pod["spec"]["containers"][0]["name"] == "proxy"
        assert pod["metadata"]["labels"]["mesh"] == "injected"
    wait_until("three ranks", lambda: namespace.read()["status"]["readyReplicas"] == 3)
    before = writes(operator, namespace)
    have_rounds(operator, namespace)
    assert writes(operator, namespace) == before
    assert kubelets.pods().keys() == ALL_PODS

    kubelets.namespace.api.request(
        "DELETE", namespace.core("pods/gpt-w1-1"), {"gracePeriodSeconds": 0}
    )
    wait_until("the replacement", lambda: "gpt-w1-2" in kubelets.pods())
    replacement = kubelets.run("gpt-w1-2", "n2")
    workers = [kubelets.pods()["gpt-w0-1"], replacement, kubelets.pods()["gpt-w2-1"]]
    stub.report(members=tuple(member(pod, rank) for rank, pod in enumerate(workers)))
    wait_until(
        "the replacement's rank",
        lambda: "gpt-w1-2" in [w["pod"] for w in namespace.read()["status"]["workers"]],
    )
    assert kubelets.pods().keys() == {*ALL_PODS, "gpt-w1-2"} - {"gpt-w1-1"}
    assert [name for _, name in webhook.asked].count("gpt-w1-2") == 1
    status = namespace.read()["status"]
    assert (status["phase"], status["podFailures"]) == ("Running", 0)
    images = [c["image"] for c in replacement["spec"]["containers"] if c["name"] == "trainer"]
    assert images == ["mirror.example/example/trainer:1"], "the mirror of what the spec asks for"


@pytest.mark.parametrize("webhook", [strip], indirect=True)
def test_pods_that_a_webhook_has_made_useless_are_not_made_again_and_again(
    operator: OperatorProcess,
    namespace: Namespace,
    webhook: AdmissionWebhook,
    running: tuple[Kubelets, CoordinatorStub],
) -> None:
    """The agents never find their coordinator, so they are no members, and show no life."""
    kubelets, stub = running
    stub.report(members=(), agents_in_contact=(), phase="waiting", world_size=0)
    wait_until("what is missing", lambda: condition(namespace, "Ready")["status"] == "False")
    before = writes(operator, namespace)
    have_rounds(operator, namespace)
    assert writes(operator, namespace)[:2] == before[:2]
    assert kubelets.pods().keys() == ALL_PODS
    assert len(webhook.asked) == len(ALL_PODS)


class Refusing:
    """A webhook that refuses all pods until a test is content."""

    def __init__(self) -> None:
        self.refuses = True

    def __call__(self, pod: Json) -> Verdict:
        return "the image is not signed" if self.refuses else inject(pod)


def live(kubelets: Kubelets) -> set[str]:
    return set(kubelets.pods())


@pytest.mark.parametrize("webhook", [Refusing()], indirect=True)
def test_a_webhook_that_refuses_pods_is_named_and_asked_ever_later(
    operator: OperatorProcess, namespace: Namespace, webhook: AdmissionWebhook
) -> None:
    make_claim(namespace)
    kubelets = Kubelets(namespace)
    assert namespace.create(SMALLEST).status == 201

    def times() -> list[float]:
        return [at for at, name in webhook.asked if name == "gpt-c1"]

    wait_until("refusals of the coordinator", lambda: len(times()) >= REFUSALS, seconds=60)
    assert times()[REFUSALS - 1] - times()[0] >= FEWEST_SECONDS
    ready = condition(namespace, "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "ApiError")
    assert NAME in ready["message"]
    assert "the image is not signed" in ready["message"]
    assert live(kubelets) == set()
    assert {name for _, name in webhook.asked if "-c" in name} == {"gpt-c1"}, "no term is skipped"

    assert isinstance(webhook.review, Refusing)
    webhook.review.refuses = False
    wait_until("all pods", lambda: len(live(kubelets)) == 4, seconds=90)
    wait_until(
        "no more of the refusal", lambda: NAME not in condition(namespace, "Ready")["message"]
    )


def test_while_a_webhook_is_away_the_job_waits_and_says_so_and_starts_once_it_is_back(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    make_claim(namespace)
    kubelets, port = Kubelets(namespace), free_port()
    with ExitStack() as stack:
        stack.enter_context(admission(namespace, port))
        assert namespace.create(SMALLEST).status == 201
        wait_until("its name", lambda: NAME in condition(namespace, "Ready").get("message", ""))
        ready = condition(namespace, "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "ApiError")
        assert "failed calling webhook" in ready["message"]
        assert live(kubelets) == set()

        webhook = stack.enter_context(AdmissionWebhook(namespace, inject, port))
        wait_until("all pods", lambda: len(live(kubelets)) == 4, seconds=90)
        have_a_round(operator, namespace, namespace.jobs("gpt"), "b")
        labels = [pod["metadata"]["labels"] for pod in kubelets.pods("worker").values()]
        assert sorted(each["regroup.dev/index"] for each in labels) == ["0", "1", "2"]
        assert len(webhook.asked) == 4, "each pod is made once"
    assert "Traceback" not in operator.log.read_text()
