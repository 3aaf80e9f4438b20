"""Sentences for refused requests: which request, why, what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from regroup.kubernetes.cluster_errors import Request, refusal, unreachable

GET = Request("get", "trainingjobs", "team", "gpt")


def body(message: str, **details: Any) -> str:
    return json.dumps({"kind": "Status", "message": message, "details": details})


def test_a_job_that_is_not_there() -> None:
    error = refusal(GET, 404, body("trainingjobs.regroup.dev gpt not found", name="gpt"))
    assert str(error) == (
        "trainingjob gpt not found in namespace team: `kubectl trainingjob get -A` lists all"
    )


@pytest.mark.parametrize("answer", ["404 page not found\n", body("could not find the resource")])
def test_a_cluster_without_regroup(answer: str) -> None:
    assert "the cluster knows no TrainingJobs: install Regroup" in str(refusal(GET, 404, answer))


def test_a_missing_right_is_named() -> None:
    message = 'trainingjobs.regroup.dev "gpt" is forbidden: User "edith" cannot get resource'
    text = str(refusal(GET, 403, body(message, name="gpt")))
    assert text.startswith(f"cannot get trainingjobs gpt in namespace team: {message}: ask")


def test_each_wrong_field_is_named() -> None:
    causes = [
        {"field": "spec.replicas", "message": "too many"},
        {"field": "spec.image", "message": "too long"},
    ]
    text = str(refusal(Request("create", "trainingjobs"), 422, body("is invalid", causes=causes)))
    assert text == "cannot create trainingjobs: spec.replicas: too many; spec.image: too long"


@pytest.mark.parametrize("answer", ["", "[]", "<html>", '"x"', None])
def test_an_answer_that_is_no_status_is_no_error(answer: str | None) -> None:
    assert "cannot get trainingjobs gpt" in str(refusal(GET, 500, answer))


def test_what_the_answer_holds_does_not_control_the_terminal() -> None:
    assert "\x1b" not in str(refusal(GET, 500, body("\x1b[2J")))
    assert "\x1b" not in str(unreachable("https://x\x1b", "y\x1b"))


def test_outages_may_pass_and_refusals_do_not() -> None:
    assert unreachable("https://x", "refused").may_pass
    assert refusal(GET, 503, None).may_pass
    assert not refusal(GET, 404, None).may_pass
