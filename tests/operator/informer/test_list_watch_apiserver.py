"""The cache beside a real API server, with a connection that breaks, and one that sends no more."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any
from urllib.parse import urlsplit

import kopf
import pytest
import yaml

from regroup_operator.api import names
from regroup_operator.api.resource import API_VERSION, KIND, Key, Object
from regroup_operator.informer import list_watch
from regroup_operator.informer.api_connection import ApiConnection
from regroup_operator.informer.collection import Collection
from regroup_operator.informer.list_watch import ListWatch
from regroup_operator.informer.object_cache import ObjectCache
from regroup_operator.informer.resource_version import parse_version
from tests.support.dropping_proxy import DroppingProxy
from tests.support.kube_api import Api, Namespace
from tests.support.specs import SMALLEST, put
from tests.support.waiting import until

pytestmark = pytest.mark.apiserver
DEADLINE_SECONDS = 60


def make_pod(name: str, job: str = "gpt") -> Object:
    """A pod with the label of a job."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {names.JOB: job}},
        "spec": {"containers": [{"name": "a", "image": "a"}]},
    }


def credentials(api: Api, port: int) -> kopf.ConnectionInfo:
    """The administrator's, for a proxy before the API server."""
    config = yaml.safe_load(api.kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return kopf.ConnectionInfo(
        server=f"https://127.0.0.1:{port}",
        ca_data=cluster["certificate-authority-data"],
        certificate_data=user["client-certificate-data"],
        private_key_data=user["client-key-data"],
    )


ONLY_METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
LARGE = "<" * 1_000_000
"""JSON has six bytes for each of these characters."""


def make_large_pod() -> Object:
    """A pod whose JSON has six megabytes."""
    pod = make_pod("large")
    return put(pod, "spec.containers", [{"name": "a", "image": "a", "args": [LARGE]}])


def make_large_job() -> Object:
    """A job as large as etcd takes one: it holds those six bytes itself."""
    template = {"spec": {"containers": [{"name": "trainer", "args": [LARGE[:100_000]]}]}}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "large", "annotations": {"a": LARGE[:100_000]}},
        "spec": {**SMALLEST, "template": template},
    }


class Counted(Collection):
    """Counts the watches of a collection."""

    begun = 0

    def watch(self, version: str, seconds: int) -> AsyncGenerator[Object, None]:
        Counted.begun += 1
        return super().watch(version, seconds)


class Watched:
    """The pods of a namespace in a cache, by job."""

    def __init__(self, namespace: Namespace, connection: ApiConnection, proxy: DroppingProxy):
        self.namespace, self.connection, self.proxy = namespace, connection, proxy
        self.path = namespace.core("pods")
        self.cache: ObjectCache[str] = ObjectCache(10**6, 10**6)
        self.changed: list[Key] = []
        self.watch = ListWatch(
            Collection(connection, self.path, names.JOB),
            self.cache,
            lambda change: self.changed.append(change.subject),
            lambda pod: (str(pod["metadata"]["name"]), 1),
            lambda metadata: (str(metadata["namespace"]), str(metadata["labels"][names.JOB])),
        )

    def of(self, job: str) -> list[str]:
        """The names of the pods of a job."""
        return [seen.key[1] for seen in self.cache.of((self.namespace.name, job))]

    async def write(self, method: str, name: str = "", body: Any = None, content: str = "") -> Any:
        """A write of this process; its answer is noted."""
        path = f"{self.path}/{name}" if name else self.path
        answer = await self.connection.request(
            method, path, body, content=content or "application/json"
        )
        self.cache.note(self.watch.read(answer))
        return answer

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so."""
        await until("what is watched", condition, DEADLINE_SECONDS)

    async def until_equal(self) -> None:
        """Wait until the cache is what the API server has."""
        found = await asyncio.to_thread(self.namespace.api.list_all, self.path)
        versions = {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in found}
        jobs = {p["metadata"]["labels"][names.JOB] for p in found} | {"gpt"}

        def is_equal() -> bool:
            seen = [s for job in jobs for s in self.cache.of((self.namespace.name, job))]
            return {s.key[1]: str(s.version) for s in seen} == versions

        await self.until(is_equal)


@pytest.fixture
async def watched(api: Api, namespace: Namespace) -> AsyncIterator[Watched]:
    config = yaml.safe_load(api.kubeconfig.read_text())
    port = urlsplit(config["clusters"][0]["cluster"]["server"]).port
    assert port is not None
    async with (
        DroppingProxy(port) as proxy,
        ApiConnection(lambda: credentials(api, proxy.port)) as connection,
    ):
        found = Watched(namespace, connection, proxy)
        running = asyncio.create_task(found.watch.run())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await found.watch.listed.wait()
        yield found
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_own_writes_are_read_at_once_and_nothing_comes_back(watched: Watched) -> None:
    for number in range(20):
        await watched.write("POST", body=make_pod(f"p{number}"))
        assert f"p{number}" in watched.of("gpt")
    relabel = {"metadata": {"labels": {names.JOB: "other"}}}
    await watched.write("PATCH", "p0", relabel, "application/merge-patch+json")
    assert watched.of("other") == ["p0"]
    assert "p0" not in watched.of("gpt")
    for number in range(1, 20):
        await watched.write("DELETE", f"p{number}")
    await watched.until(lambda: watched.of("gpt") == [])
    await watched.until_equal()


async def test_dropped_connections_lose_no_event(watched: Watched) -> None:
    api, path = watched.namespace.api, watched.path
    for number in range(12):
        watched.proxy.drop()
        answer = await asyncio.to_thread(api.request, "POST", path, make_pod(f"p{number}"))
        assert answer.status == 201, answer.message
        if number % 3 == 2:
            await asyncio.to_thread(api.request, "DELETE", f"{path}/p{number - 1}")
    await watched.until_equal()
    assert len(watched.of("gpt")) == 8
    assert set(watched.changed) == {(watched.namespace.name, "gpt")}


async def test_a_connection_that_sends_no_more_is_left_and_a_list_finds_what_it_hid(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await watched.write("POST", body=make_pod("p0"))
    await watched.until(lambda: len(watched.changed) == 1)
    watched.proxy.mute()
    api, path = watched.namespace.api, watched.path
    await asyncio.to_thread(api.request, "POST", path, make_pod("hidden"))
    await asyncio.to_thread(api.request, "DELETE", f"{path}/p0")
    monkeypatch.setattr(list_watch, "IDLE_SECONDS", 0.5)
    watched.watch._received_at -= 600  # of the watch that is under way
    watched.proxy.drop()
    watched.proxy.mute(muted=False)
    await watched.until_equal()
    assert watched.of("gpt") == ["hidden"]


async def test_a_version_that_is_too_old_ends_in_a_list_without_ghosts(watched: Watched) -> None:
    await watched.write("POST", body=make_pod("p0"))
    await watched.until(lambda: len(watched.changed) == 1)
    watched.cache.version = 1
    watched.proxy.drop()
    api, path = watched.namespace.api, watched.path
    await asyncio.to_thread(api.request, "DELETE", f"{path}/p0")
    await watched.until_equal()
    assert watched.of("gpt") == []


async def test_a_list_of_one_job_and_the_watch_agree(watched: Watched) -> None:
    """Versions of a list, of objects and of events compare with each other."""
    created = [await watched.write("POST", body=make_pod(f"p{n}")) for n in range(3)]
    watched.proxy.mute()
    api, path = watched.namespace.api, watched.path
    await asyncio.to_thread(api.request, "DELETE", f"{path}/p1")
    selected = await asyncio.to_thread(
        api.request, "GET", f"{path}?labelSelector={names.JOB}%3Dgpt"
    )
    listed = [watched.watch.read(pod) for pod in selected.body["items"]]
    version = parse_version(selected.body["metadata"]["resourceVersion"])
    assert version > max(parse_version(p["metadata"]["resourceVersion"]) for p in created)
    watched.cache.note_list((watched.namespace.name, "gpt"), listed, version)
    assert watched.of("gpt") == ["p0", "p2"]
    watched.proxy.mute(muted=False)
    await watched.until_equal()


# --- large objects --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "watches_metadata", "make"),
    [("pods", False, make_large_pod), ("trainingjobs", True, make_large_job)],
)
async def test_a_large_object_that_is_changed_in_a_loop_costs_no_other_watch_or_list(
    watched: Watched,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    watches_metadata: bool,
    make: Callable[[], Object],
) -> None:
    folder = namespace.jobs() if path == "trainingjobs" else namespace.core(path)
    monkeypatch.setattr(Counted, "begun", 0)
    cache: ObjectCache[str] = ObjectCache(10**6, 10**6)
    collection = Counted(watched.connection, folder, "", watches_metadata)
    changes: list[Key] = []
    read: list[Object] = []

    def keep(document: Object) -> tuple[str, int]:
        read.append(document)
        return "", 0

    watch = ListWatch(collection, cache, lambda change: changes.append(change.subject), keep)
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await watch.listed.wait()
    request = functools.partial(watched.connection.request, accept=ONLY_METADATA)
    await request("POST", folder, make())
    for number in range(10):
        patch = {"metadata": {"labels": {"number": str(number)}}}
        await request("PATCH", f"{folder}/large", patch, content="application/merge-patch+json")
    await request("DELETE", f"{folder}/large")
    await watched.until(lambda: bool(changes) and cache.get(changes[0]) is None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(changes) >= 12
    assert (Counted.begun, watch._failures) == (1, 0)
    assert read == [], "no event was decoded whole"
