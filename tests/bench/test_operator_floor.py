"""The floor posts what an operator has made, without what the API server fills in."""

from __future__ import annotations

from typing import Any

import pytest

from bench.operators.course import most_writes, quantile, un_says
from bench.operators.floor import _as_posted


def test_what_the_api_server_fills_in_is_not_posted() -> None:
    found = {
        "metadata": {
            "name": "job-c1",
            "labels": {"regroup.dev/job": "job"},
            "uid": "1",
            "resourceVersion": "7",
            "ownerReferences": [{"uid": "2"}],
        },
        "spec": {"containers": [], "nodeName": "n1", "clusterIP": "198.19.0.1"},
        "status": {"phase": "Running"},
    }
    assert _as_posted(found) == {
        "metadata": {"name": "job-c1", "labels": {"regroup.dev/job": "job"}},
        "spec": {"containers": []},
    }


def test_a_secret_is_posted_with_its_data() -> None:
    assert _as_posted({"metadata": {"name": "token"}, "data": {"a": "b"}})["data"] == {"a": "b"}


def test_a_quantile_is_one_of_the_values() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert quantile([float(n) for n in range(1, 201)], 0.99) == 199.0


SAID: dict[str, Any] = {
    "phase": "Running",
    "rendezvousGeneration": "1.1",
    "progress": {"step": 7},
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, False),
        ({"progress": {"step": 9}}, False),
        ({"progress": {"step": 6}}, True),
        ({"progress": {}}, True),
        ({"phase": "Pending"}, True),
        ({"rendezvousGeneration": None}, True),
    ],
)
def test_a_status_that_loses_what_it_has_said_is_noticed(
    change: dict[str, Any], expected: bool
) -> None:
    assert un_says({"status": SAID}, {"status": {**SAID, **change}}) is expected


def test_status_writes_after_a_restart_are_those_of_the_worst_job_that_lost_no_worker() -> None:
    assert most_writes({"a": 4, "b": 1, "c": 2}, jobs=3, apart="a") == 2
    assert most_writes({"a": 4}, jobs=3, apart="a") == 0
    assert most_writes({"a": 4}, jobs=1, apart="a") is None
