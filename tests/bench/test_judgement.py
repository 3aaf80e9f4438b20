"""What a fuzz calls a finding."""

from __future__ import annotations

import pytest

from bench.fuzz.course import p99
from bench.fuzz.judgement import (
    is_judged,
    last_line,
    names_field_and_value,
    refusal,
    troubles,
    unnamed_refusal,
)
from tests.support.kube_api import Json


def job(reason: str, message: str, **spec: str) -> Json:
    """A job that is not ready."""
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": message}
    return {"spec": spec, "status": {"conditions": [condition]}}


@pytest.mark.parametrize(
    "message",
    [
        "spec.replicas: Input should be greater than or equal to 1, got 0",
        "spec.trainer.suspend: unknown field; spec.spares: Input should be an integer, got []",
        "spec.template.spec.containers[0].name: is missing: an entry of containers needs it",
        "not supported yet: spec.scheduling.gang=Workload (gang scheduling)",
        'POST /api/v1/pods: 422 Pod "a" is invalid: spec.os.name: Required value',
    ],
)
def test_a_refusal_with_field_and_value_is_none(message: str) -> None:
    assert names_field_and_value(message)
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
    ],
)
def test_a_refusal_without_one_of_them_is_a_finding(message: str) -> None:
    assert unnamed_refusal(job("InvalidSpec", message)) == message


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
