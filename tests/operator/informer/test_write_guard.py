"""No request that changes something is sent by a process that may not, however long it waited for a
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from regroup_operator.errors import ClusterError
from regroup_operator.informer.api_connection import TIMEOUT, ApiConnection
from regroup_operator.informer.write_guard import guarded
from tests.support.fake_cluster_api import FakeClusterApi

POD: dict[str, Any] = {"metadata": {"namespace": "a", "name": "gpt-w0-1"}, "spec": {}}
PODS = "/api/v1/namespaces/a/pods"


class EndedError(Exception):
    """Stands for the end of the process."""


class Guard:
    """Allows a write for so many seconds, as often as `allowed`."""

    def __init__(self) -> None:
        self.allowed = 1000
        self.seconds = 100.0

    def __call__(self) -> float:
        self.allowed -= 1
        if self.allowed < 0:
            raise EndedError
        return self.seconds


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
async def api() -> AsyncIterator[FakeClusterApi]:
    async with FakeClusterApi() as api:
        yield api


@pytest.fixture
async def connection(api: FakeClusterApi, guard: Guard) -> AsyncIterator[ApiConnection]:
    async with ApiConnection(api.login, guard) as connection:
        yield connection


async def test_a_process_that_may_not_write_reads_and_sends_no_write(
    api: FakeClusterApi, connection: ApiConnection, guard: Guard
) -> None:
    guard.allowed = 0
    assert (await connection.request("GET", PODS))["items"] == []
    for method in ("POST", "PATCH", "DELETE"):
        with pytest.raises(EndedError):
            await connection.request(method, PODS, POD)
    assert api.requests == {"list pods": 1}


@pytest.mark.parametrize("is_open", [False, True])
async def test_the_guard_is_asked_again_when_there_is_a_connection(
    is_open: bool, api: FakeClusterApi, connection: ApiConnection, guard: Guard
) -> None:
    if is_open:
        await connection.request("GET", PODS)
    guard.allowed = 1  # at first, and no more when it is to be sent
    with pytest.raises(EndedError):
        await connection.request("POST", PODS, POD)
    assert api.all("pods") == []
    guard.allowed = 2
    await connection.request("POST", PODS, POD)
    assert len(api.all("pods")) == 1


async def test_a_write_waits_no_longer_than_it_is_allowed(
    guard: Guard, connection: ApiConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stay(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeClusterApi, "_create", stay)
    guard.seconds = 0.05
    with pytest.raises(ClusterError, match="no answer"):
        await connection.request("POST", PODS, POD)


def test_a_limit_is_not_rounded_up() -> None:
    limited = guarded("POST", lambda: 7.3, TIMEOUT)["timeout"]
    assert (limited.total, limited.connect) == (7.3, 5)
    assert limited.ceil_threshold > 15
    assert guarded("POST", lambda: 100.0, TIMEOUT)["timeout"].total == 15
    assert guarded("GET", lambda: 0.0, TIMEOUT) == {"timeout": TIMEOUT}
