"""Requests, beside a server that answers what cannot be read."""

from __future__ import annotations

import kopf
import pytest

from regroup_operator.controller.cluster import Cluster
from regroup_operator.errors import UnreadableObjectError
from tests.support.fake_api_server import FakeApiServer, make_object


async def test_a_pod_that_cannot_be_read_whole_fails_the_list_of_its_job() -> None:
    async with FakeApiServer() as server:
        server.objects = [make_object("one", 1), make_object("two", 1)]
        async with Cluster(lambda: kopf.ConnectionInfo(server=server.url)) as cluster:
            found, version = await cluster.pods("a", "", lambda pod: pod["metadata"]["name"])
            assert (found, version) == (["one", "two"], "1")
            for server.large, server.unreadable in (({"two"}, set()), (set(), {"two"})):
                with pytest.raises(UnreadableObjectError, match="cannot read pod two"):
                    await cluster.pods("a", "", lambda pod: pod)
