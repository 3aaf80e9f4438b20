"""The whole operator as a process, with the rights that the chart gives it, on a real API server.

There is no kubelet: the tests bind pods and write their statuses, and answer for the coordinator.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import Outcome, Recovery, RequestAnswer
from regroup_trainer.system.spans import trace_id
from tests.support.coordinator_stub import CoordinatorStub, VersionOneStub
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import (
    NODES,
    Kubelets,
    OperatorProcess,
    condition,
    make_claim,
    make_node,
    member,
    renew,
    renewed_leases,
)
from tests.support.operator_simulation import make_coordinator_status
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.running_job import run_workers, start_job
from tests.support.specs import SMALLEST, put
from tests.support.version_one_records import recorded
from tests.support.waiting import wait_until

pytestmark = pytest.mark.apiserver


def test_a_job_gets_its_objects_and_its_status(
    operator: OperatorProcess, namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    status = namespace.read()["status"]
    assert status["readyReplicas"] == 3
    assert status["coordinatorTerm"] == 1
    assert condition(namespace, "Ready")["status"] == "True"
    assert {token.split()[0] for token in stub.tokens} == {"Bearer"}
    service = namespace.api.request("GET", namespace.core("services/gpt-coordinator")).body
    assert service["spec"]["selector"]["regroup.dev/term"] == "1"
    secrets = namespace.api.request("GET", namespace.core("secrets")).body["items"]
    assert [s["metadata"]["name"] for s in secrets] == [
        f"gpt-token-{namespace.read()['metadata']['uid'][:8]}"
    ]
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace.name}/networkpolicies/gpt-isolated"
    assert namespace.api.request("GET", path).status == 200
    for pod in kubelets.pods().values():
        owner = pod["metadata"]["ownerReferences"][0]
        assert (owner["controller"], owner["uid"]) == (True, namespace.read()["metadata"]["uid"])
    assert (
        "trainingjob_status_phase"
        f'{{namespace="{namespace.name}",phase="Running",trainingjob="gpt"}} 1.0'
        in operator.metrics()
    )


def test_an_unresponsive_node_loses_its_pod_and_is_used_again_when_its_lease_changes(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    workers = sorted(kubelets.pods("worker").values(), key=lambda pod: pod["metadata"]["name"])
    lost = workers[1]
    others = [member(pod, rank) for rank, pod in enumerate((workers[0], workers[2]))]
    stub.report(members=(*others, member(lost, None, "no contact for 2.0 s")), world_size=2)
    wait_until("a replacement", lambda: "gpt-w1-2" in kubelets.pods(), seconds=60)
    terms = kubelets.pods()["gpt-w1-2"]["spec"]["affinity"]["nodeAffinity"]
    assert "n2" in str(terms)
    assert lost["metadata"]["name"] not in kubelets.pods()
    status = namespace.read()["status"]
    assert status["suspectedNodes"] == ["n2"]
    assert status["nodeFailures"] == {"n2": 1}
    assert status["readyReplicas"] == 2
    renewals = itertools.count(1)

    def may_use_the_node() -> bool:
        """The kubelet renews its lease again and again: the operator has to see it move."""
        renew(namespace.api, "n2", f"2026-01-01T00:00:{next(renewals):02}.000000Z")
        return "gpt-w1-3" in kubelets.pods()

    wait_until("a pod that may use the node", may_use_the_node, seconds=60, every=1.0)
    assert "affinity" not in kubelets.pods()["gpt-w1-3"]["spec"]
    wait_until("the suspicion to end", lambda: namespace.read()["status"]["suspectedNodes"] == [])
    events = namespace.api.request("GET", namespace.core("events")).body["items"]
    assert "NodeLost" in {event["reason"] for event in events}


def test_a_failure_is_counted_once_although_the_operator_is_killed_over_and_over(
    operator: OperatorProcess, namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    ended = {"exitCode": 137, "reason": "OOMKilled", "message": "out of memory"}
    containers = [
        {"name": "trainer", "image": "a", "imageID": "", "ready": False, "restartCount": 0}
    ]
    containers[0]["state"] = {"terminated": ended}
    operator.kill(namespace.api)
    stub.report(phase="recovering", progress=None)
    kubelets.write("gpt-w0-1", {"phase": "Failed", "containerStatuses": containers})
    for _ in range(3):
        operator.start()
        wait_until("the replacement", lambda: "gpt-w0-2" in kubelets.pods())
        operator.kill(namespace.api)
    operator.start()
    status = namespace.read()["status"]
    assert status["podFailures"] == 1
    assert len(kubelets.pods("worker")) == 4, "the failed one is kept for its logs"
    assert status["coordinatorTerm"] == 1


def test_its_spans_for_a_lost_worker_arrive_in_the_trace_of_the_recovery(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub], receiver: OtlpReceiver
) -> None:
    kubelets, stub = running
    pods = kubelets.pods("worker")
    lost = pods.pop("gpt-w1-1")
    others = tuple(member(pod, rank) for rank, pod in enumerate(pods.values()))
    stub.report(members=(*others, member(lost, None, "no contact for 2.0 s")), world_size=2)
    wait_until("a replacement", lambda: "gpt-w1-2" in kubelets.pods(), seconds=60)
    replacement = member(kubelets.run("gpt-w1-2", NODES[0]), 2)
    recovery = Recovery(
        sequence=2,
        time=time.time(),
        cause="infrastructure",
        restored_from="Peers",
        generation=GenerationNumber(1, 2),
        down_seconds=3.0,
        world_size_before=3,
        world_size_after=3,
    )
    stub.report(
        generation=recovery.generation,
        members=(*others, replacement),
        recoveries=(recovery,),
        world_size=3,
    )
    trace = trace_id(namespace.read()["metadata"]["uid"], str(recovery.generation))

    def arrived() -> set[str]:
        return {span.name for span in receiver.spans if span.trace_id.hex() == trace}

    names = {"replace worker", "start worker"}
    wait_until("its spans", lambda: arrived() == names, seconds=60)


def test_a_coordinator_that_does_not_answer_gets_a_successor_once_something_shows_its_death(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    with renewed_leases(namespace.api, NODES):
        stub.__exit__(None, None, None)
        wait_until(
            "what is not known",
            lambda: "Whether it is dead is unknown" in namespace.read()["status"]["message"],
            seconds=60,
        )
        assert namespace.read()["status"]["phase"] == "Running"
        assert "gpt-c2" not in kubelets.pods()
        kubelets.set_ready("gpt-c1", ready=False)
        wait_until("the next coordinator", lambda: "gpt-c2" in kubelets.pods(), seconds=60)
    assert namespace.read()["status"]["coordinatorTerm"] == 2
    service = namespace.api.request("GET", namespace.core("services/gpt-coordinator")).body
    assert service["spec"]["selector"]["regroup.dev/term"] == "2"
    stub._server.server_close = lambda: None  # type: ignore[method-assign]
    stub._server.shutdown = lambda: None  # type: ignore[method-assign]


def test_a_spec_edited_while_running_is_sent_to_the_coordinator_and_a_wrong_one_is_not(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    namespace.replace_spec(put(SMALLEST, "trainer.training.steps", 900), dry_run=False)
    sent = wait_until("the newer spec", lambda: stub.desired)
    assert sent[0].train.training.steps == 900
    assert sent[0].revision == 2
    namespace.replace_spec(put(SMALLEST, "trainer.training.stepz", 7), dry_run=False)
    namespace.replace_spec(
        put(put(SMALLEST, "trainer.training.steps", 900), "trainer.stepz", 7), dry_run=False
    )
    ready = wait_until(
        "the refusal", lambda: (c := condition(namespace, "Ready"))["reason"] == "InvalidSpec" and c
    )
    assert "spec.trainer.stepz: unknown field" in ready["message"]
    assert namespace.read()["status"]["phase"] == "Running"
    assert {desired.revision for desired in stub.desired} == {2}
    assert len(kubelets.pods()) == 4


def test_an_annotation_asks_for_a_checkpoint_and_the_status_says_what_became_of_it(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    _, stub = running
    patch = {"metadata": {"annotations": {"regroup.dev/checkpoint-now": "now-1"}}}
    path, merge = namespace.jobs("gpt"), "application/merge-patch+json"
    assert namespace.api.request("PATCH", path, patch, merge).status == 200
    sent = wait_until("the request", lambda: stub.desired, seconds=60)
    assert (sent[0].checkpoint_request, sent[0].revision) == ("now-1", 1)
    answer = RequestAnswer(request="now-1", outcome="Done", message="step 7 is saved")
    stub.report(checkpoint_answer=answer)

    def outcome() -> str:
        (request,) = namespace.read()["status"].get("requests") or [{}]
        return str(request.get("outcome"))

    wait_until("the outcome", lambda: outcome() == "Done", seconds=60)
    assert {desired.checkpoint_request for desired in stub.desired} == {"now-1"}


def test_suspending_saves_first_and_resuming_makes_new_pods(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    namespace.replace_spec({**SMALLEST, "suspend": True}, dry_run=False)
    assert wait_until("the order to suspend", lambda: stub.desired)[0].suspend
    assert len(kubelets.pods()) == 4
    stub.report(phase="suspended", outcome=Outcome(result="suspended", message="saved"))
    wait_until("all pods to go", lambda: not kubelets.pods())
    kubelets.remove_deleted()
    wait_until("the condition", lambda: condition(namespace, "Suspended").get("status") == "True")
    namespace.replace_spec(SMALLEST, dry_run=False)
    wait_until(
        "new pods", lambda: set(kubelets.pods()) == {"gpt-c2", "gpt-w0-2", "gpt-w1-2", "gpt-w2-2"}
    )


def test_a_completed_job_keeps_its_status_and_gives_its_pods_back(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, stub = running
    stub.report(phase="completed", outcome=Outcome(result="completed", message="trained 500 steps"))
    wait_until("completion", lambda: condition(namespace, "Complete").get("status") == "True")
    wait_until("the pods to go", lambda: not kubelets.pods())
    kubelets.remove_deleted()
    status = namespace.read()["status"]
    assert (status["phase"], status["message"]) == ("Succeeded", "trained 500 steps")
    assert "completionTime" in status


def as_release_0_1_stored_it(namespace: Namespace) -> Json:
    """Replace the status by one that release 0.1 wrote about the same pods."""
    stored = {**recorded("job_status"), "coordinatorTerm": 1, "nextIncarnation": 2}
    stored |= {"handledPods": [], "podFailures": 0}
    assert namespace.write_status(stored).status == 200
    status: Json = namespace.read()["status"]
    assert status["worldGeneration"] == "2.4", "the schema keeps the former name"
    return status


def test_a_job_of_release_0_1_trains_on_under_this_operator(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    kubelets = start_job(namespace)
    made = set(kubelets.pods())
    operator.kill(namespace.api)
    as_release_0_1_stored_it(namespace)
    members = tuple(member(pod, rank) for rank, pod in enumerate(run_workers(kubelets)))
    with VersionOneStub(make_coordinator_status(members=members)) as stub:
        kubelets.run("gpt-c1", "n1", stub.address)
        operator.start()
        wait_until(
            "the coordinator's report",
            lambda: namespace.read()["status"].get("rendezvousGeneration") == "1.1",
        )
        status = namespace.read()["status"]
        assert status["phase"] == "Running"
        assert "worldGeneration" not in status
        assert (status["coordinatorTerm"], status["protocolVersion"]) == (1, 1)
        assert {recovery["restoredFrom"] for recovery in status["recoveries"]} >= {
            "Peers",
            "Snapshot",
            "Checkpoint",
        }
        assert not [recovery for recovery in status["recoveries"] if "rung" in recovery]
        assert set(kubelets.pods()) == made
        namespace.replace_spec(put(SMALLEST, "trainer.training.steps", 900), dry_run=False)
        sent = wait_until("the newer spec", lambda: stub.desired)
        assert sent[0].train.training.steps == 900
        stub.report(members=members[:2])
        namespace.api.request("DELETE", namespace.core("pods/gpt-w2-1"), {"gracePeriodSeconds": 0})
        wait_until("a replacement", lambda: "gpt-w2-2" in kubelets.pods("worker"))
        container = kubelets.pods()["gpt-w2-2"]["spec"]["containers"][0]
        assert container["image"] == "trainer:0.1"


REFUSALS: dict[str, tuple[Callable[[Json], Json], str, str]] = {
    "an unknown field": (
        lambda s: put(s, "trainer.training.stepz", 7),
        "InvalidSpec",
        "did you mean 'steps'?",
    ),
    "what is not supported": (
        lambda s: put(s, "scheduling.gang", "PodGroup"),
        "NotSupported",
        "not supported yet",
    ),
    "torchrun": (
        lambda s: put(s, "launcher", "torchrun"),
        "NotSupported",
        "containers[trainer].command is missing",
    ),
    "more workers than the operator has memory for": (
        lambda s: put(s, "spares", 2**31 - 1), "InvalidSpec", "this installation allows 4096 a job",
    ),
    "a reserved field": (
        lambda s: put(s, "template.spec.restartPolicy", "Always"),
        "InvalidSpec",
        "spec.template.spec.restartPolicy",
    ),
    "no storage for two workers": (
        lambda s: {"replicas": 2, "trainer": {}}, "InvalidSpec", "checkpoint.storage",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
def test_a_job_with_what_the_api_server_cannot_judge_is_refused_by_a_condition(
    operator: OperatorProcess, namespace: Namespace, what: str
) -> None:
    change, reason, words = REFUSALS[what]
    assert namespace.create(change(SMALLEST)).status == 201
    ready = wait_until("the refusal", lambda: condition(namespace, "Ready"))
    assert (ready["status"], ready["reason"]) == ("False", reason)
    assert words in ready["message"]
    assert Kubelets(namespace).pods() == {}


def test_a_job_of_another_controller_is_left_alone(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    namespace.create(put(SMALLEST, "managedBy", "example.com/other"), "theirs")
    namespace.create(SMALLEST, "ours")
    wait_until("a status of ours", lambda: namespace.read("ours").get("status"))
    assert "status" not in namespace.read("theirs")


def test_a_missing_claim_is_named_and_waited_for(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    namespace.create(SMALLEST)
    ready = wait_until("the complaint", lambda: condition(namespace, "Ready"))
    assert ready["reason"] == "ClaimMissing"
    assert "'shared'" in ready["message"]
    make_claim(namespace)
    wait_until("pods", lambda: len(Kubelets(namespace).pods()) == 4, seconds=60)


def test_a_claim_of_the_jobs_own_is_made_and_outlives_it(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    template = {"spec": {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "none"}}
    namespace.create(put(SMALLEST, "checkpoint.storage", {"volumeClaimTemplate": template}))
    path = namespace.core("persistentvolumeclaims/gpt-checkpoints")
    wait_until("the claim", lambda: namespace.api.request("GET", path).status == 200)
    claim = namespace.api.request("GET", path).body
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert "ownerReferences" not in claim["metadata"]


def test_a_refused_pod_shows_in_the_status(operator: OperatorProcess, namespace: Namespace) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", **quota}
    namespace.api.request("POST", namespace.core("resourcequotas"), body)
    status: Json = {"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}}
    namespace.api.request(
        "PATCH",
        namespace.core("resourcequotas/none/status"),
        status,
        "application/merge-patch+json",
    )
    make_claim(namespace)
    first = time.monotonic()
    namespace.create(SMALLEST)
    wait_until(
        "the refusal", lambda: condition(namespace, "Ready").get("reason") == "QuotaExceeded"
    )
    assert "exceeded quota" in condition(namespace, "Ready")["message"]
    refused = f'namespaces/{namespace.name}/pods: 403 pods "gpt-c1" is forbidden'
    wait_until("six attempts", lambda: operator.log.read_text().count(refused) >= 6)
    assert time.monotonic() - first > 3, "later each time"
    assert namespace.read()["status"]["coordinatorTerm"] == 1


def test_a_network_policy_that_differs_from_what_is_wanted_is_put_right_once(
    operator: OperatorProcess, namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace.name}/networkpolicies/gpt-isolated"

    def policy() -> Json:
        return namespace.api.request("GET", path).body

    wanted = policy()
    opened: Json = {"spec": {**wanted["spec"], "ingress": [{}]}}
    answer = namespace.api.request("PATCH", path, opened, "application/merge-patch+json")
    assert answer.status == 200
    namespace.replace_spec(put(SMALLEST, "replicas", 2), dry_run=False)
    wait_until("the policy", lambda: policy()["spec"] == wanted["spec"])
    assert policy()["metadata"]["uid"] == wanted["metadata"]["uid"]
    changes = operator.log.read_text().count(f"{namespace.name}/gpt: EnsureAccess")
    _, stub = running
    stub.report(phase="recovering", message="a later round")
    wait_until("a later round", lambda: "a later round" in namespace.read()["status"]["message"])
    assert operator.log.read_text().count(f"{namespace.name}/gpt: EnsureAccess") == changes


def test_a_running_job_loses_its_network_policy_when_it_wants_none_and_gets_it_again(
    operator: OperatorProcess, namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    policies = f"/apis/networking.k8s.io/v1/namespaces/{namespace.name}/networkpolicies"

    def kept() -> dict[str, Json]:
        found = namespace.api.request("GET", policies).body["items"]
        return {policy["metadata"]["name"]: policy for policy in found}

    own = kept()["gpt-isolated"]
    other: Json = {"metadata": {"name": "bank-isolated", "labels": own["metadata"]["labels"]}}
    assert namespace.api.request("POST", policies, {**other, "spec": own["spec"]}).status == 201
    answer = namespace.replace_spec({**SMALLEST, "networkPolicy": "None"}, dry_run=False)
    assert answer.status == 200, answer.message
    wait_until("the policy to go", lambda: set(kept()) == {"bank-isolated"}, seconds=60)
    namespace.replace_spec(SMALLEST, dry_run=False)
    wait_until("a policy again", lambda: "gpt-isolated" in kept(), seconds=60)
    assert kept()["gpt-isolated"]["spec"] == own["spec"]
    assert len(running[0].pods()) == 4


def test_a_policy_of_somebody_else_is_no_matter_of_a_job_that_wants_none(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace.name}/networkpolicies"
    foreign: Json = {"metadata": {"name": "gpt-isolated"}, "spec": {"podSelector": {}}}
    made = namespace.api.request("POST", path, foreign).body
    make_claim(namespace)
    namespace.create({**SMALLEST, "networkPolicy": "None"})
    wait_until("pods", lambda: Kubelets(namespace).pods("worker"), seconds=60)
    (kept,) = namespace.api.request("GET", path).body["items"]
    assert kept["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


DIGEST = f"sha256:{'0af5' * 16}"


def test_replacements_run_the_very_image_that_a_kubelet_has_pulled(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, _ = running

    def runs(name: str, container: str, image: str, image_id: str) -> None:
        state: Json = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        of_container = {"name": container, "image": image, "imageID": image_id, "state": state}
        kubelets.write(
            name, {"containerStatuses": [{**of_container, "ready": True, "restartCount": 0}]}
        )

    def image_of(name: str) -> str:
        pod = wait_until(name, lambda: kubelets.pods().get(name), seconds=60)
        return str(pod["spec"]["containers"][0]["image"])

    runs("gpt-c1", "coordinator", "example/operator:1", DIGEST)
    runs("gpt-w0-1", "trainer", "example/trainer:1", f"docker.io/example/trainer@{DIGEST}")
    images = {"trainer": f"example/trainer@{DIGEST}", "coordinator": "example/operator:1"}
    wait_until("the digest", lambda: namespace.read()["status"]["images"] == images, seconds=60)
    namespace.api.request("DELETE", namespace.core("pods/gpt-w2-1"), {"gracePeriodSeconds": 0})
    assert image_of("gpt-w2-2") == images["trainer"]
    runs("gpt-c1", "coordinator", "example/operator:1", f"docker.io/example/operator@{DIGEST}")
    images["coordinator"] = f"example/operator@{DIGEST}"
    wait_until("the digest", lambda: namespace.read()["status"]["images"] == images, seconds=60)
    namespace.api.request("DELETE", namespace.core("pods/gpt-c1"), {"gracePeriodSeconds": 0})
    assert image_of("gpt-c2") == images["coordinator"]


def test_a_volume_that_is_not_mounted_is_explained_in_the_words_of_its_kubelet(
    namespace: Namespace, running: tuple[Kubelets, CoordinatorStub]
) -> None:
    kubelets, _ = running
    namespace.api.request("DELETE", namespace.core("pods/gpt-w2-1"), {"gracePeriodSeconds": 0})
    pod = wait_until("a replacement", lambda: kubelets.pods().get("gpt-w2-2"))
    why = 'MountVolume.SetUp failed for volume "data" : configmap "data" not found'
    about = {"kind": "Pod", "namespace": namespace.name, "name": "gpt-w2-2"}
    event: Json = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "gpt-w2-2.1"}}
    event |= {"involvedObject": {**about, "uid": pod["metadata"]["uid"]}, "type": "Warning"}
    event |= {"reason": "FailedMount", "message": why, "lastTimestamp": "2026-01-01T00:00:09Z"}
    assert namespace.api.request("POST", namespace.core("events"), event).status == 201
    kubelets.bind("gpt-w2-2", "n3")
    main: Json = {"name": "trainer", "image": "a", "imageID": "", "ready": False}
    main |= {"restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    kubelets.write("gpt-w2-2", {"containerStatuses": [main], "conditions": [bound]})
    wait_until("the message", lambda: why in namespace.read()["status"]["message"])


def test_settings_that_are_wrong_are_named(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "REGROUP_OPERATOR_TRAINER_IMAGE": "a",
        "REGROUP_OPERATOR_METRICS_PORT": "many",
    }
    done = subprocess.run(
        [sys.executable, "-m", "regroup_operator"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "REGROUP_OPERATOR_COORDINATOR_IMAGE" in done.stderr
    assert "REGROUP_OPERATOR_METRICS_PORT" in done.stderr


STOCK = {
    "launcher": "torchrun",
    "replicas": 2,
    "template": {"spec": {"containers": [{"name": "trainer", "command": ["python", "train.py"]}]}},
}


def test_a_torchrun_job_gets_its_store_first_and_completes_when_its_workers_end_well(
    operator: OperatorProcess, namespace: Namespace
) -> None:
    for node in NODES:
        make_node(namespace.api, node)
    assert namespace.create(STOCK).status == 201
    kubelets = Kubelets(namespace)
    wait_until("the store", lambda: set(kubelets.pods()) == {"gpt-s1"})
    kubelets.run("gpt-s1", "n1")
    wait_until("two workers", lambda: set(kubelets.pods("worker")) == {"gpt-w0-1", "gpt-w1-1"})
    service = namespace.api.request("GET", namespace.core("services/gpt-store")).body
    command = kubelets.pods()["gpt-w0-1"]["spec"]["containers"][0]["command"]
    assert f"--rdzv-endpoint={service['spec']['clusterIP']}:29400" in command
    assert namespace.api.request("GET", namespace.core("secrets")).body["items"] == []
    for name, node in (("gpt-w0-1", "n2"), ("gpt-w1-1", "n3")):
        kubelets.run(name, node)
    wait_until("a running job", lambda: namespace.read()["status"].get("phase") == "Running")
    assert namespace.read()["status"]["worldSize"] == 2

    namespace.api.request("DELETE", namespace.core("pods/gpt-w1-1"), {"gracePeriodSeconds": 0})
    wait_until("a replacement", lambda: "gpt-w1-2" in kubelets.pods("worker"))
    kubelets.run("gpt-w1-2", "n3")
    for name in ("gpt-w0-1", "gpt-w1-2"):
        ended = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-01T00:00:00Z"}
        main = {"name": "trainer", "ready": False, "restartCount": 0, "image": "a", "imageID": "a"}
        kubelets.write(
            name,
            {"phase": "Succeeded", "containerStatuses": [{**main, "state": {"terminated": ended}}]},
        )
    wait_until("the end", lambda: condition(namespace, "Complete").get("status") == "True")
    wait_until("the store to go", lambda: "gpt-s1" not in kubelets.pods())
    restarts = namespace.read()["status"]["restarts"]
    # What a deleted pod counts as depends on whether the operator saw it go, or only that it is
    # gone.
    assert restarts["infrastructure"] + restarts["preemption"] == 1
