"""What a fuzz calls a finding."""

from __future__ import annotations

import pytest

from bench.fuzz.fuzz_course import p99
from bench.fuzz.judgement import (
    is_judged,
    last_line,
    names_field_and_value,
    refusal,
    troubles,
    unnamed_refusal,
)
from tests.support.kube_api import Json

SCRIPT = ["bash", "-c", "sleep 7"]
VOLUMES = [{"name": "a", "emptyDir": {}}, {"name": "a", "configMap": {"name": 7}}]
SPEC: Json = {
    "replicas": 3,
    "spares": [],
    "nprocPerNode": "banana",
    "scheduling": {"gang": "Workload"},
    "checkpoint": {"storage": {"emptyDir": {}, "persistentVolumeClaim": {"claimName": "shared"}}},
    "trainer": {"suspend": True, "training": {"learningRate": 1e300}},
    "template": {
        "metadata": {"labels": {"example.com/a": "A b", "C d": "e"}},
        "spec": {"containers": [{"name": "trainer", "command": SCRIPT}], "volumes": VOLUMES},
    },
}
CONTAINER = "spec.template.spec.containers[trainer]"
LABELS = "spec.template.metadata.labels"


def job(reason: str, message: str, spec: Json = SPEC) -> Json:
    """A job that is not ready."""
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": message}
    return {"spec": spec, "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    "message",
    [
        "spec.replicas: Input should be less than or equal to 2, got 3",
        "spec.trainer.suspend: unknown field; spec.spares: Input should be an integer, got []",
        f"{CONTAINER}.image: is missing: name the image of this container",
        "not supported yet: spec.scheduling.gang=Workload (gang scheduling)",
        "spec: replicas 3 must lie between elasticPolicy.minReplicas (1) and the other",
        "spec.nprocPerNode.int: Input should be a valid integer, got 'banana'",
        "spec.trainer.training.learningRate: Input should be less than 1, got 1e+300",
        "spec.checkpoint.storage: give exactly one, got emptyDir and persistentVolumeClaim",
        f"{CONTAINER}.command: 'bash -c sleep 7' is a line for a shell: write the program",
        f"{LABELS}: the value of example.com/a must have at most 63 letters, got 'A b'",
        f"{LABELS}: 'C d' is no key: write it as in example.com/name",
        f"{LABELS}[example.com/a]: must be a string, got 'A b'",
        "spec.template.spec.volumes: 'a' is there twice: give each its own",
        "spec.template.spec.volumes[a].configMap.name: must be a string, got 7",
        "spec: has more than 10000 values, and no pod needs that: put long lists into a file",
        "spec.spares 0 and spec.replicas 3 make up to 3 workers",
        'POST /api/v1/pods: 422 Pod "a" is invalid: spec.os.name: Required value',
    ],
)
def test_a_refusal_with_field_and_value_is_none(message: str) -> None:
    assert names_field_and_value(message, SPEC)
    assert not unnamed_refusal(job("InvalidSpec", message))


@pytest.mark.parametrize(
    "message",
    [
        "something is wrong with this job",
        "spec.replicas: is wrong",
        "the value 7 is wrong",
        "spec.replicas: Input should be a valid integer",
        "spec.elasticPolicy: Input should be 'A' or 'B'",
        "spec.spares: unknown field; spec.replicas: Input should be a valid integer",
        "spec.replicas: needs 2 nodes",
        "spec.replicas: Input should be less than or equal to 2, got 30",
        "spec.scheduling.gang='None' is what is possible",
        "spec: replicas must be a multiple of 2",
        "spec.trainer.training.learningRate: Input should be less than 1, got 1e30",
        f"{CONTAINER}.command: is a line for a 'shell': write the program",
        f"{LABELS}[example.com/a]: must have at most 63 letters",
        "spec.template.spec.volumes: a name is there twice: give each '1'",
    ],
)
def test_a_refusal_without_one_of_them_is_a_finding(message: str) -> None:
    assert unnamed_refusal(job("InvalidSpec", message)) == message


def test_a_field_that_the_spec_does_not_have_may_show_what_it_is_by_default() -> None:
    message = "spec.spares 0 is less than 1"
    assert names_field_and_value(message, {})
    assert not names_field_and_value(message, {"spares": 3})


def test_a_sentence_of_the_api_server_needs_no_path() -> None:
    message = 'POST /api/v1/pods: 403 pods "a" is forbidden: serviceaccount "data" not found'
    assert not unnamed_refusal(job("ApiError", message))
    assert unnamed_refusal(job("InternalError", "no idea"))


def test_what_the_api_server_refuses_of_a_job_that_was_taken_is_read_from_its_status() -> None:
    message = 'POST /api/v1/namespaces/a/pods: 422 Pod "a" is invalid: spec.os.name: Required value'
    assert refusal(job("ApiError", message)) == (
        '422 Pod "a" is invalid: spec.os.name: Required value'
    )
    assert not refusal(job("ApiError", "POST /api/v1/namespaces/a/pods: no answer within 9 s"))
    assert not refusal(job("InvalidSpec", message))
    assert not refusal({"spec": {}})


def test_what_waits_is_not_refused() -> None:
    assert not unnamed_refusal(job("CoordinatorPending", "the coordinator's pod waits for a node"))


def test_a_job_without_a_status_is_unanswered_unless_another_controller_has_it() -> None:
    assert not is_judged({"spec": {}})
    assert not is_judged({"spec": {}, "status": {"conditions": []}})
    assert is_judged({"spec": {"managedBy": "example.com/other"}})
    assert is_judged(job("InvalidSpec", "spec.replicas: is wrong"))


def test_the_log_reports_errors_that_nobody_expects() -> None:
    quiet = "INFO a/b: CreateWorker(index=0)\nWARNING a/b: POST /api/v1/pods: 422 no"
    assert troubles(quiet) == []
    loud = "ERROR a/b: reconcile failed\nTraceback (most recent call last):\nValueError: no"
    assert len(troubles(f"{quiet}\n{loud}")) == 2


def test_the_last_line_of_the_log_says_why_an_operator_has_ended() -> None:
    assert last_line("INFO it leads\nCRITICAL the operator ends: paused\n") == (
        "CRITICAL the operator ends: paused"
    )
    assert last_line("") == ""


def test_the_99th_percentile_of_few_samples_is_the_greatest() -> None:
    assert p99([3.0, 1.0, 2.0]) == 3.0
    assert p99([float(number) for number in range(1, 201)]) == 198.0
