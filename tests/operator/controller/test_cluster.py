"""Requests, beside a server that answers what cannot be read."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable

import kopf
import pytest

from regroup_operator.api.resource import Object
from regroup_operator.controller import cluster as cluster_module
from regroup_operator.controller.cluster import Cluster
from regroup_operator.errors import ClusterError, UnreadableObjectError
from regroup_operator.informer import pod_lists
from regroup_operator.informer.collection import Page
from regroup_operator.informer.object_cache import Seen
from regroup_operator.informer.pod_lists import LARGE_LISTS
from tests.support.fake_api_server import FakeApiServer, make_object


def read(pod: Object) -> Seen[str]:
    """A pod, of which the name is kept."""
    name = pod["metadata"]["name"]
    return Seen(("a", name), name, 1, 1, ("a", "gpt"), name, size=10)


async def test_a_pod_that_cannot_be_read_whole_fails_the_list_of_its_job() -> None:
    async with FakeApiServer() as server:
        server.objects = [make_object("one", 1), make_object("two", 1)]
        async with Cluster(lambda: kopf.ConnectionInfo(server=server.url)) as cluster:
            found, version = await cluster.pods("a", "", read)
            assert ([seen.value for seen in found], version) == (["one", "two"], "1")
            for server.large, server.unreadable in (({"two"}, set()), (set(), {"two"})):
                with pytest.raises(UnreadableObjectError, match="cannot read pod two"):
                    await cluster.pods("a", "", read)


async def test_a_pod_that_goes_while_it_is_asked_for_is_no_pod() -> None:
    async with FakeApiServer() as server:
        server.objects, server.fleeting = [make_object("one", 1)], {"one"}
        async with Cluster(lambda: kopf.ConnectionInfo(server=server.url)) as cluster:
            assert await cluster.pods("a", "", read) == ([], "1")


async def test_pods_of_one_job_that_would_fill_memory_fail_its_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "MOST_POD_BYTES", 15)
    async with FakeApiServer() as server:
        server.objects = [make_object("one", 1), make_object("two", 1)]
        async with Cluster(lambda: kopf.ConnectionInfo(server=server.url)) as cluster:
            with pytest.raises(UnreadableObjectError, match="take more than 15 bytes"):
                await cluster.pods("a", "", read)


MIB = 1024 * 1024
Lists = Callable[[str], asyncio.Task[bool]]
"""Begins a round of a namespace, which lists pods and holds them. Whether it had to wait in vain.
"""


@pytest.fixture
async def begin_round(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lists]:
    """Of pods that take 30 MiB."""

    async def large_pages(_: object) -> AsyncIterator[Page]:
        for _number in range(10):
            await asyncio.sleep(0)
            yield Page([make_object("one", 1)], "1")

    def read_large(_: Object) -> Seen[bytearray]:
        return Seen(("a", "one"), "uid", 1, 1, ("a", "gpt"), bytearray(3 * MIB), size=3 * MIB)

    async def round_of(cluster: Cluster, namespace: str) -> bool:
        try:
            found, _ = await cluster.pods(namespace, "", read_large)
        except ClusterError as error:
            return "put off" not in str(error)
        await may_end.wait()
        return len(found) == 10

    may_end, rounds = asyncio.Event(), list[asyncio.Task[bool]]()
    monkeypatch.setattr(cluster_module, "pages", large_pages)
    cluster = Cluster(lambda: kopf.ConnectionInfo(server="http://127.0.0.1:9"))

    def begin(namespace: str) -> asyncio.Task[bool]:
        rounds.append(asyncio.create_task(round_of(cluster, namespace)))
        return rounds[-1]

    yield begin
    may_end.set()
    await asyncio.gather(*rounds, return_exceptions=True)


async def test_lists_that_rounds_hold_at_once_are_bounded(
    begin_round: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten namespaces, 300 MiB. Those that wait in vain leave their places."""
    monkeypatch.setattr(pod_lists, "PATIENCE_SECONDS", 0.5)
    tracemalloc.start()
    try:
        rounds = [begin_round(f"ns{number}") for number in range(10)]
        await asyncio.wait(rounds, timeout=1.5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(not each.done() for each in rounds) == LARGE_LISTS
    assert peak < (30 * LARGE_LISTS + 3 * 10) * MIB, f"{peak >> 20} MiB"


async def test_large_lists_of_one_namespace_leave_room_for_those_of_others(
    begin_round: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_lists, "PATIENCE_SECONDS", 0.5)
    rounds = [begin_round("tenant") for _ in range(8)]
    other = begin_round("other")
    await asyncio.wait([*rounds, other], timeout=1.5)
    assert sum(not each.done() for each in rounds) == 1
    assert not other.done()


async def test_the_next_list_of_a_namespace_begins_when_a_round_has_ended(
    begin_round: Lists, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_lists, "PATIENCE_SECONDS", 0.5)
    first, second = begin_round("a"), begin_round("a")
    await asyncio.wait([first, second], timeout=0.1)
    first.cancel()
    await asyncio.wait([second], timeout=1.0)
    assert not second.done()
