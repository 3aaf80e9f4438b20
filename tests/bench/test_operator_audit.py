"""Writes are counted by who has sent them, without what is the same for all operators."""

from __future__ import annotations

import json
from typing import Any

from bench.operators.audit import CONTROLLERS, Write, by_controllers, by_verb, status_writes, writes


def event(user: str, verb: str, resource: str = "pods", **more: Any) -> str:
    """A line of an audit log."""
    reference = {"resource": resource, **more}
    agent = "kube-controller-manager/v1 (linux/amd64) kubernetes/x/endpointslice-controller"
    return json.dumps(
        {"user": {"username": user}, "verb": verb, "objectRef": reference, "userAgent": agent}
    )


def test_the_writes_of_operators_and_controllers_are_counted() -> None:
    log = [
        event("operator", "create"),
        event("operator", "create"),
        event("operator", "patch", "trainingjobs", subresource="status"),
        event("operator", "list"),
        event(CONTROLLERS, "update", "endpointslices"),
        event("kwok", "patch", subresource="status"),
        event("system:kube-scheduler", "create", subresource="binding"),
    ]
    assert writes(log) == {
        Write("operator", "create", "pods"): 2,
        Write("operator", "patch", "trainingjobs/status"): 1,
        Write("endpointslice-controller", "update", "endpointslices"): 1,
    }


def test_writes_are_counted_by_verb_and_apart_for_the_controllers() -> None:
    found = {
        Write("operator", "create", "pods"): 9,
        Write("operator", "patch", "trainingjobs/status"): 2,
        Write("endpointslice-controller", "create", "endpointslices"): 1,
    }
    assert by_verb(found) == {"create": 10, "patch": 2}
    assert by_controllers(found) == 1


def test_the_writes_of_a_status_are_counted_by_job() -> None:
    status = {"subresource": "status"}
    log = [
        event("operator", "patch", "trainingjobs", **status, name="a"),
        event("operator", "patch", "trainingjobs", **status, name="b"),
        event("operator", "patch", "trainingjobs", **status, name="b"),
        event("operator", "patch", "trainingjobs", name="a"),
        event("kwok", "patch", "trainingjobs", **status, name="a"),
    ]
    assert status_writes(log, "trainingjobs") == {"a": 1, "b": 2}
