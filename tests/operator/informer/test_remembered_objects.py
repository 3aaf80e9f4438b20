"""Objects from memory: what is read at once, and when the API server is asked."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from regroup_operator.api import names
from regroup_operator.errors import ClusterError
from regroup_operator.informer.remembered_objects import (
    ABSENT_SECONDS,
    MOST_OUTDATED,
    RememberedObjects,
)
from tests.support.job_memory import make_job_watch, make_service_watch

Json = dict[str, Any]
KEY = ("a", "gpt")


def make_job(version: int, **spec: Any) -> Json:
    """A job in this state."""
    metadata: Json = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 1}
    metadata |= {"resourceVersion": str(version), "managedFields": [{"manager": "kubectl"}]}
    return {"metadata": metadata, "spec": spec}


async def answer(document: Json) -> Json:
    """A write that succeeds."""
    return document


async def refuse() -> Json:
    """A write that does not."""
    raise ClusterError("PATCH", "/gpt", 500, "no")


class Asked:
    """What the API server has, and how often it was asked for it."""

    def __init__(self, stored: Json | None) -> None:
        self.stored = stored
        self.times = 0

    async def __call__(self, namespace: str, name: str) -> Json | None:
        assert (namespace, name) == KEY
        self.times += 1
        return self.stored


def listed(asked: Asked, *jobs: Json) -> RememberedObjects:
    """Memory after a list of these jobs, at version 10."""
    watch = make_job_watch()
    found = {seen.key: seen for seen in map(watch.read, jobs)}
    watch.cache.replace(found, 10, watch.cache.begin_list())
    return RememberedObjects({None: watch}, asked)


def version_of(job: Json | None) -> str:
    """resourceVersion"""
    assert job is not None
    return str(job["metadata"]["resourceVersion"])


async def test_before_the_first_list_the_api_server_is_asked() -> None:
    asked = Asked(make_job(5))
    jobs = RememberedObjects({None: make_job_watch()}, asked)
    for _ in range(2):
        assert await jobs.get(KEY) == asked.stored
    assert asked.times == 2


async def test_a_job_comes_from_memory_and_nobody_can_change_it_there() -> None:
    asked = Asked(None)
    jobs = listed(asked, make_job(5, replicas=2))
    found = await jobs.get(KEY)
    assert found is not None
    assert found["spec"] == {"replicas": 2}
    assert "managedFields" not in found["metadata"]
    found["spec"]["replicas"] = 3
    assert (await jobs.get(KEY) or {})["spec"] == {"replicas": 2}
    assert await jobs.get(("a", "another")) is None
    assert asked.times == 0


async def test_refused_writes_of_objects_that_are_gone_do_not_gather() -> None:
    """As of jobs that a tenant makes and deletes in a loop, with a quota that is full."""
    asked = Asked(None)
    jobs = listed(asked, make_job(5))
    jobs.outdate(KEY)
    for number in range(3 * MOST_OUTDATED):
        with pytest.raises(ClusterError):
            await jobs.write(("a", f"gone{number}"), refuse())
    assert len(jobs._outdated) <= MOST_OUTDATED
    assert await jobs.get(KEY) is None, "what is in doubt is asked for all the same"
    assert asked.times == 1


async def test_the_answer_to_a_write_is_read_at_once() -> None:
    asked = Asked(None)
    jobs = listed(asked, make_job(5))
    await jobs.write(KEY, answer(make_job(12)))
    assert version_of(await jobs.get(KEY)) == "12"
    assert asked.times == 0


async def test_after_a_write_that_was_refused_the_api_server_is_asked_once() -> None:
    asked = Asked(make_job(30))
    jobs = listed(asked, make_job(5))
    with pytest.raises(ClusterError):
        await jobs.write(KEY, refuse())
    for _ in range(2):
        assert version_of(await jobs.get(KEY)) == "30"
    assert asked.times == 1


async def test_a_job_that_is_gone_is_asked_for_until_memory_shows_it() -> None:
    asked = Asked(None)
    watch = make_job_watch()
    seen = watch.read(make_job(5))
    watch.cache.replace({seen.key: seen}, 10, watch.cache.begin_list())
    jobs = RememberedObjects({None: watch}, asked)
    jobs.outdate(KEY)
    for _ in range(2):
        assert await jobs.get(KEY) is None
    assert asked.times == 2
    watch.cache.apply(watch.read(make_job(31)), deleted=True)
    assert await jobs.get(KEY) is None
    watch.cache.apply(watch.read(make_job(32)))
    assert version_of(await jobs.get(KEY)) == "32"
    assert asked.times == 2, "a new job of that name is not in doubt"


async def test_a_job_that_is_too_large_to_keep_is_asked_for_each_time() -> None:
    large = make_job(5, template="x" * 200_000)
    asked = Asked(large)
    jobs = listed(asked, large)
    for _ in range(2):
        assert await jobs.get(KEY) == large
    assert asked.times == 2


async def test_each_namespace_has_a_memory_of_its_own() -> None:
    watch, other = make_job_watch(), make_job_watch()
    for each in (watch, other):
        each.cache.replace({}, 10, each.cache.begin_list())
    jobs = RememberedObjects({"a": watch, "b": other}, Asked(None))
    jobs.note(KEY, make_job(12))
    assert version_of(await jobs.get(KEY)) == "12"
    assert (watch.cache.size > 0, other.cache.size) == (True, 0)


# --- what a label selects -------------------------------------------------------------------------


def make_service(version: int, **labels: str) -> Json:
    """A Service as a list has it: without its kind."""
    metadata: Json = {"namespace": "a", "name": "gpt", "uid": "uid-2", "labels": labels}
    return {"metadata": {**metadata, "resourceVersion": str(version)}, "spec": {}, "status": {}}


def labelled(
    asked: Asked, *services: Json, clock: Callable[[], float] = time.monotonic
) -> RememberedObjects:
    """Memory after a list of these Services, at version 10."""
    watch = make_service_watch()
    found = {seen.key: seen for seen in map(watch.read, services)}
    watch.cache.replace(found, 10, watch.cache.begin_list())
    return RememberedObjects({None: watch}, asked, names.JOB, clock)


async def test_an_object_from_memory_has_its_kind_and_no_status() -> None:
    asked = Asked(None)
    found = await labelled(asked, make_service(5, **{names.JOB: "gpt"})).get(KEY)
    assert found is not None
    assert found["kind"] == "Service"
    assert "status" not in found
    assert asked.times == 0


async def test_what_memory_lacks_is_asked_for_where_only_a_label_is_watched() -> None:
    """Somebody else's object without the label may have the name."""
    asked = Asked(make_service(17))
    services = labelled(asked)
    for _ in range(2):
        assert await services.get(KEY) == asked.stored
    assert asked.times == 2, "it may change at any time, and no watch shows it"


async def test_that_there_is_none_counts_for_a_while_and_until_a_write() -> None:
    asked, now = Asked(None), 100.0
    services = labelled(asked, clock=lambda: now)
    for _ in range(2):
        assert await services.get(KEY) is None
    assert asked.times == 1
    with pytest.raises(ClusterError):
        await services.write(KEY, refuse())
    assert await services.get(KEY) is None
    assert asked.times == 2, "the write may have been carried out"
    now += ABSENT_SECONDS + 1.0
    asked.stored = make_service(17)
    assert await services.get(KEY) == asked.stored


async def test_an_object_that_was_asked_for_is_known_from_then_on() -> None:
    asked = Asked(make_service(17, **{names.JOB: "gpt"}))
    services = labelled(asked)
    for _ in range(2):
        assert version_of(await services.get(KEY)) == "17"
    assert asked.times == 1


async def test_a_deleted_object_is_asked_for_until_memory_shows_that_it_is_gone() -> None:
    asked = Asked(None)
    services = labelled(asked, make_service(5, **{names.JOB: "gpt"}))
    services.outdate(KEY)
    assert await services.get(KEY) is None
    assert asked.times == 1
