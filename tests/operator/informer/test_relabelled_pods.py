"""Pods that have vanished: those that are there without their label, and those that are gone."""

from __future__ import annotations

from typing import Any

from regroup_operator.errors import ClusterError
from regroup_operator.informer.object_cache import Change
from regroup_operator.informer.relabelled_pods import (
    MOST_SOUGHT,
    MOST_VANISHED,
    RELABELLED_SECONDS,
    RelabelledPods,
)
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
        self.relabelled = RelabelledPods(self.ask, lambda: self.now)

    async def ask(self, _namespace: str, name: str) -> Json | None:
        self.asked.append(name)
        if name == "refused":
            raise ClusterError("GET", "pods", 403, "no")
        return self.found.get(name)

    def vanish(self, *pods: Json) -> None:
        for pod in pods:
            self.relabelled.note_change(Change(JOB.key, make_pod_watch().read(pod), None))


async def test_a_pod_that_is_there_without_its_label_is_found_and_has_no_role() -> None:
    server = Pods(make_pod(JOB, labels={}))
    server.vanish(make_pod(JOB))
    assert [(pod.name, pod.role) for pod in await server.relabelled.find(JOB)] == [("gpt-w0-1", "")]
    assert server.relabelled.found_lately(JOB.key)
    server.now = RELABELLED_SECONDS
    assert not server.relabelled.found_lately(JOB.key)


async def test_what_is_gone_foreign_or_refused_is_looked_for_once() -> None:
    server = Pods(make_pod(JOB, "foreign", ownerReferences=[]), make_pod(JOB, "again", uid="new"))
    server.vanish(*(make_pod(JOB, name) for name in ("gone", "foreign", "again", "refused")))
    for _ in range(2):
        assert await server.relabelled.find(JOB) == []
    assert server.asked == ["gone", "foreign", "again", "refused"]
    assert not server.relabelled.found_lately(JOB.key)


async def test_a_pod_that_was_being_deleted_is_not_looked_for_and_many_are_bounded() -> None:
    server = Pods()
    server.vanish(make_pod(JOB, "going", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert await server.relabelled.find(JOB) == []
    assert server.asked == []
    server.vanish(*(make_pod(JOB, f"p{number}") for number in range(MOST_VANISHED + 1)))
    await server.relabelled.find(JOB)
    assert server.asked == [f"p{number}" for number in range(1, MOST_SOUGHT + 1)]
