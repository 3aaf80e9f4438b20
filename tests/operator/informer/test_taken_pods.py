"""Pods that have vanished or lost their owner: those that are there, and those that are gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regroup_operator.errors import ClusterError
from regroup_operator.informer.object_cache import Change
from regroup_operator.informer.taken_pods import (
    MOST_SOUGHT,
    MOST_VANISHED,
    TAKEN_SECONDS,
    TakenPods,
)
from regroup_operator.observe.observed import Job
from tests.support.job_memory import make_pod, make_pod_watch
from tests.support.rendering import make_valid_job

Json = dict[str, Any]
JOB = make_valid_job()


class Pods:
    """Pods by name, which a test fills."""

    def __init__(self, *pods: Json) -> None:
        self.found = {pod["metadata"]["name"]: pod for pod in pods}
        self.asked: list[str] = []
        self.now = 0.0
        self.taken = TakenPods(self.ask, lambda: self.now)

    async def ask(self, _namespace: str, name: str) -> Json | None:
        self.asked.append(name)
        if name == "refused":
            raise ClusterError("GET", "pods", 403, "no")
        return self.found.get(name)

    def vanish(self, *pods: Json) -> None:
        for pod in pods:
            self.taken.note_change(Change(JOB.key, make_pod_watch().read(pod), None))

    def edit(self, before: Json, after: Json) -> None:
        read = make_pod_watch().read
        self.taken.note_change(Change(JOB.key, read(before), read(after)))

    async def find(self, job: Job = JOB) -> tuple[list[str], list[str]]:
        """The names of the relabelled pods, and of the disowned ones."""
        found = await self.taken.find(job)
        assert {pod.role for pod in (*found.relabelled, *found.disowned)} <= {""}
        return [pod.name for pod in found.relabelled], [pod.name for pod in found.disowned]


async def test_a_pod_that_is_there_without_its_label_is_found_and_has_no_role() -> None:
    server = Pods(make_pod(JOB, labels={}))
    server.vanish(make_pod(JOB))
    assert await server.find() == (["gpt-w0-1"], [])
    assert server.taken.found_lately(JOB.key)
    server.now = TAKEN_SECONDS
    assert not server.taken.found_lately(JOB.key)


async def test_what_is_gone_new_or_refused_is_looked_for_once() -> None:
    server = Pods(make_pod(JOB, "again", uid="new"))
    server.vanish(*(make_pod(JOB, name) for name in ("gone", "again", "refused")))
    for _ in range(2):
        assert await server.find() == ([], [])
    assert server.asked == ["gone", "again", "refused"]
    assert not server.taken.found_lately(JOB.key)


@pytest.mark.parametrize("owners", [[], [{"kind": "A", "uid": "other", "controller": True}]])
async def test_a_pod_that_has_lost_its_owner_is_found_until_it_is_counted(
    owners: list[Json],
) -> None:
    taken = make_pod(JOB, version=6, ownerReferences=owners)
    server = Pods(taken)
    server.edit(make_pod(JOB), taken)
    for _ in range(2):
        assert await server.find() == ([], ["gpt-w0-1"])
    assert server.taken.found_lately(JOB.key)
    counted = JOB.status.model_copy(update={"handled_pods": ("uid-gpt-w0-1",)})
    assert await server.find(replace(JOB, status=counted)) == ([], [])
    assert len(server.asked) == 2


async def test_a_pod_that_has_lost_label_and_owner_at_once_is_found() -> None:
    server = Pods(make_pod(JOB, labels={}, ownerReferences=[]))
    server.vanish(make_pod(JOB))
    assert await server.find() == ([], ["gpt-w0-1"])


async def test_pods_that_were_never_the_jobs_and_edits_of_others_parts_are_not_looked_for() -> None:
    server, foreign = Pods(), make_pod(JOB, "foreign", ownerReferences=[])
    server.vanish(foreign)
    server.edit(foreign, make_pod(JOB, "foreign"))
    server.edit(make_pod(JOB), make_pod(JOB, version=6, annotations={"a": "b"}))
    server.edit(make_pod(JOB), make_pod(JOB, uid="another", ownerReferences=[]))
    assert await server.find() == ([], [])
    assert server.asked == []


async def test_a_pod_that_was_being_deleted_is_not_looked_for_and_many_are_bounded() -> None:
    server = Pods()
    server.vanish(make_pod(JOB, "going", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert await server.find() == ([], [])
    assert server.asked == []
    server.vanish(*(make_pod(JOB, f"p{number}") for number in range(MOST_VANISHED + 1)))
    await server.taken.find(JOB)
    assert server.asked == [f"p{number}" for number in range(1, MOST_SOUGHT + 1)]
