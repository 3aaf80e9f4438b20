"""Requests, beside a server that answers what cannot be read."""

from __future__ import annotations

import kopf
import pytest

from regroup_operator.api.resource import Object
from regroup_operator.controller import cluster as cluster_module
from regroup_operator.controller.cluster import Cluster
from regroup_operator.errors import UnreadableObjectError
from regroup_operator.informer.object_cache import Seen
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
