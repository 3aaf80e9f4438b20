"""The floor posts what an operator has made, without what the API server fills in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bench.operators.floor import _as_posted
from bench.operators.operator_course import (
    end_watch,
    losers,
    most_writes,
    quantile,
    said_by,
    un_says,
)


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
    "startTime": "2026-01-01T00:00:00Z",
    "restartCount": 2,
    "coordinatorTerm": 1,
    "nextIncarnation": 4,
    "readyReplicas": 8,
    "worldSize": 8,
    "conditions": [{"type": "Ready", "status": "True"}],
    "workers": [{"pod": "gpt-w0-1", "state": "Running"}],
    "recoveries": [{"time": "2026-01-01T00:01:00Z"}],
    "checkpoint": {"lastStep": 5},
    "progress": {"step": 7},
}


def said(name: str = "gpt", **change: Any) -> dict[str, Any]:
    """What a job says whose status has changed so."""
    return said_by({"metadata": {"name": name}, "status": {**SAID, **change}})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"progress": {"step": 9}},
        {"readyReplicas": 9},
        {"workers": [{"pod": "gpt-w0-1", "state": "Training"}]},
        {"recoveries": [*SAID["recoveries"], {"time": "2026-01-01T00:02:00Z"}]},
    ],
)
def test_a_status_that_goes_on_loses_nothing(change: dict[str, Any]) -> None:
    assert not un_says(said(), said(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"progress": {"step": 6}},
        {"progress": {}},
        {"phase": "Pending"},
        {"rendezvousGeneration": None},
        {"startTime": None},
        {"restartCount": 1},
        {"coordinatorTerm": 0},
        {"nextIncarnation": 1},
        {"recoveries": []},
        {"checkpoint": {}},
    ],
)
def test_a_status_that_loses_what_it_has_said_is_noticed(change: dict[str, Any]) -> None:
    assert un_says(said(), said(**change))
    assert losers([said(), said(**change)], apart="gpt") == {"gpt"}


@pytest.mark.parametrize(
    "change",
    [
        {"readyReplicas": 7},
        {"worldSize": 0},
        {"conditions": []},
        {"workers": [{"pod": "gpt-w0-2", "state": "Pending"}]},
    ],
)
def test_what_follows_from_a_lost_worker_is_expected_of_its_job_alone(
    change: dict[str, Any],
) -> None:
    course = [said(), said("other"), said(**change), said("other", **change)]
    assert losers(course, apart="gpt") == {"other"}


async def test_a_watch_that_has_ended_by_itself_has_not_seen_that_nothing_was_lost() -> None:
    async def end() -> None:
        return

    async def fail() -> None:
        raise ConnectionResetError

    for watch in (end(), fail()):
        task = asyncio.create_task(watch)
        await asyncio.wait([task])
        with pytest.raises(ConnectionError):
            await end_watch(task)
    going_on = asyncio.create_task(asyncio.Event().wait())
    await end_watch(going_on)
    assert going_on.cancelled()


def test_status_writes_after_a_restart_are_those_of_the_worst_job_that_lost_no_worker() -> None:
    assert most_writes({"a": 4, "b": 1, "c": 2}, jobs=3, apart="a") == 2
    assert most_writes({"a": 4}, jobs=3, apart="a") == 0
    assert most_writes({"a": 4}, jobs=1, apart="a") is None
