"""Pods from memory: whose they are, and when memory does not suffice."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.api import names
from regroup_operator.errors import ClusterError
from regroup_operator.informer.job_pods import (
    MOST_ENTRIES,
    JobPods,
    SeenPod,
    is_loss,
    keep_pod,
)
from regroup_operator.informer.object_cache import Change
from regroup_operator.observe.bounded_json import decode
from regroup_operator.observe.kubernetes_objects import read_pod
from tests.support.fake_api_server import FakeApiServer
from tests.support.job_memory import make_pod, make_pod_watch
from tests.support.rendering import make_valid_job, make_worker

Json = dict[str, Any]


def listed(*pods: Json, version: int = 10) -> JobPods:
    """Memory after a list of these pods."""
    watch = make_pod_watch()
    found = {seen.key: seen for seen in map(watch.read, pods)}
    watch.cache.replace(found, version, watch.cache.begin_list())
    return JobPods({None: watch})


def test_before_the_first_list_memory_knows_nothing() -> None:
    assert JobPods({None: make_pod_watch()}).of(make_valid_job()) is None


def test_a_job_has_the_pods_that_it_controls_whatever_their_labels_say() -> None:
    job = make_valid_job()
    own = make_pod(job)
    foreign = make_pod(job, "mallory", ownerReferences=[])
    assert listed(own, foreign).of(job) == (read_pod(own),)


def test_a_pod_is_seen_once_its_making_was_answered() -> None:
    job, pods = make_valid_job(), listed()
    pods.note(make_pod(job, version=12))
    assert [pod.name for pod in pods.of(job) or ()] == ["gpt-w0-1"]
    pods.note(make_pod(job, version=13, deletionTimestamp="2026-01-01T00:00:00Z"))
    assert [pod.terminating for pod in pods.of(job) or ()] == [True]


def test_a_pod_that_is_too_large_to_keep_makes_the_api_server_asked() -> None:
    job = make_valid_job()
    large = make_pod(job)
    large["status"] = {"message": "x" * 200_000}
    pods = listed(large)
    assert pods.of(job) is None
    pods.note_list(job.key, [pods.read(make_pod(job, version=11))], "12")
    assert len(pods.of(job) or ()) == 1


def _with_entries(part: str, field: str, count: int) -> Json:
    pod = make_pod(make_valid_job())
    of = {"main": pod["spec"]["containers"][0]}.get(part) or pod.setdefault(part, {})
    kept = of.get(field, [])
    filled = [{"name": f"n{each}", "type": f"t{each}"} for each in range(count - len(kept))]
    of[field] = [*kept, *filled]
    return pod


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("spec", "volumes"),
        ("spec", "containers"),
        ("spec", "initContainers"),
        ("main", "env"),
        ("status", "conditions"),
        ("status", "containerStatuses"),
        ("status", "initContainerStatuses"),
    ],
)
def test_a_pod_with_more_entries_than_a_spec_has_values_is_not_looked_through(
    part: str, field: str
) -> None:
    keep_pod(_with_entries(part, field, MOST_ENTRIES))
    seen = make_pod_watch().read(_with_entries(part, field, MOST_ENTRIES + 1))
    assert (seen.key, seen.value) == (("team", "gpt-w0-1"), None)


@pytest.mark.parametrize("text", ["ab", "\U0001f600"])
def test_what_a_pod_takes_in_memory_is_counted(text: str) -> None:
    def make(number: int) -> Json:
        pod = make_pod(make_valid_job(), annotations={names.EXCLUDED_NODES: text * 10_000})
        claims = [{"claimName": f"{text}{number}{each}"} for each in range(5_000)]
        pod["spec"]["volumes"] = [{"persistentVolumeClaim": claim} for claim in claims]
        return pod

    tracemalloc.start()
    try:
        kept = [keep_pod(make(number)) for number in range(5)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 < sum(size for _, size in kept) / used < 1.5


def test_an_ordinary_pod_takes_little_memory() -> None:
    """There are nine thousand where a thousand jobs train."""
    true = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    worker = make_worker()
    worker["metadata"] |= {"uid": "4322f31b-aaaa-4322-aaaa-4322f31baaaa"}
    worker["status"] = {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True"} for kind in true],
    }
    text = json.dumps(worker).encode()
    tracemalloc.start()
    try:
        kept = [keep_pod(decode(text))[0] for _ in range(100)]
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1_000 * len(kept), used


def test_a_list_shows_what_memory_lacked_and_what_is_gone() -> None:
    job = make_valid_job()
    pods = listed(make_pod(job))
    pods.note_list(job.key, [pods.read(make_pod(job, "gpt-w0-2", 15))], "20")
    assert [pod.name for pod in pods.of(job) or ()] == ["gpt-w0-2"]
    with pytest.raises(ValueError, match="a positive number"):
        pods.note_list(job.key, [], "")


def test_each_namespace_has_a_memory_of_its_own() -> None:
    job = make_valid_job()
    watch, other = make_pod_watch(), make_pod_watch()
    for each in (watch, other):
        each.cache.replace({}, 10, each.cache.begin_list())
    pods = JobPods({job.namespace: watch, "other": other})
    pods.note(make_pod(job, version=12))
    assert len(pods.of(job) or ()) == 1
    assert (watch.cache.size > 0, other.cache.size) == (True, 0)


async def test_a_namespace_that_cannot_be_listed_keeps_no_other_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespaces: tuple[str | None, ...] = ("a", "b", "c")
    watches = {name: make_pod_watch() for name in namespaces}
    lists: list[str | None] = []
    withheld: set[str | None] = {"a"}

    def refresher(namespace: str | None) -> Callable[[float], Awaitable[None]]:
        async def refresh(_pause: float) -> None:
            lists.append(namespace)
            if namespace in withheld:
                raise ClusterError("GET", f"/{namespace}/pods", 403, "not yours")

        return refresh

    for namespace, watch in watches.items():
        monkeypatch.setattr(watch, "refresh", refresher(namespace))
    pods = JobPods(watches)
    with pytest.raises(ClusterError, match="/a/pods"):
        await pods.refresh()
    known = [pods.has_all_of((namespace, "gpt")) for namespace in ("a", "b", "c")]
    assert known == [False, True, True]
    early = pods.has_all
    withheld.clear()
    await pods.refresh()
    assert (early, pods.has_all) == (False, True)
    assert lists == ["a", "b", "c", "a"]


async def test_a_pod_that_cannot_be_read_leaves_the_jobs_of_its_name_in_doubt_and_no_others() -> (
    None
):
    """Of it only the name is known. There was a list of all pods each minute, for ever."""
    gpt = make_valid_job()
    other = replace(gpt, name="other", uid="uid-other")
    async with FakeApiServer() as server, server.connect() as connection:
        server.objects = [make_pod(gpt), make_pod(gpt, "gpt-w1-1"), make_pod(other, "other-w0-1")]
        server.unreadable, server.version = {"gpt-w1-1"}, 7
        pods = JobPods({None: make_pod_watch(connection)})
        await pods.refresh()
        await pods.refresh()
    assert (pods.has_all, server.lists) == (True, 2), "once as a page, once one by one"
    jobs = [(space, name) for space in ("team", "elsewhere") for name in ("gpt", "gp", "other")]
    assert [job for job in jobs if not pods.has_all_of(job)] == [
        ("team", "gpt"),
        ("elsewhere", "gpt"),
    ]
    assert [pod.name for pod in pods.known(other.key)] == ["other-w0-1"]


def test_a_list_that_is_trusted_leaves_the_same_jobs_in_doubt() -> None:
    watch = make_pod_watch()
    watch.left_out = frozenset({"gpt-c2", "mallory"})
    pods = JobPods({None: watch})
    pods.trust()
    assert [pods.has_all_of(("team", name)) for name in ("gpt", "mallory")] == [False, True]


@pytest.mark.parametrize(
    ("before", "after", "loss"),
    [
        ("Running", "Failed", True),
        ("Running", None, True),
        ("Pending", "Running", False),
        (None, "Running", False),
        ("Failed", None, False),
    ],
)
def test_a_pod_that_was_alive_and_is_no_more_is_a_loss(
    before: str | None, after: str | None, loss: bool
) -> None:
    def see(phase: str | None) -> SeenPod | None:
        document = {**make_pod(make_valid_job()), "status": {"phase": phase}}
        return make_pod_watch().read(document) if phase else None

    assert is_loss(Change(("a", "gpt"), see(before), see(after))) is loss
