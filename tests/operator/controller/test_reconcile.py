"""The reconciler's own memory, beside an API server that refuses nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.controller import reconcile
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.executor import Executor
from regroup_operator.controller.node_watch import NodeWatch
from regroup_operator.controller.operator_metrics import JobSeries, unreadable
from regroup_operator.decide.plan import Plan
from regroup_operator.errors import UnreadableError
from regroup_operator.observe.observed import Identity
from tests.support.rendering import KEYS, SETTINGS

Json = dict[str, Any]


class Server(Cluster):
    """One job, and the events about it."""

    def __init__(self, document: Json | UnreadableError) -> None:
        self.document = document
        self.events: list[Json] = []
        self.statuses: list[tuple[Json, Identity]] = []

    async def job(self, *_: Any) -> Json:
        if isinstance(self.document, UnreadableError):
            raise self.document
        return self.document

    async def pods(self, *_: Any) -> list[Json]:
        return []

    async def service(self, *_: Any) -> None:
        return None

    async def disruption_budget(self, *_: Any) -> None:
        return None

    async def change_status(self, _ns: str, _name: str, status: Json, present: Identity) -> None:
        self.statuses.append((status, present))

    async def create_event(self, document: Json) -> None:
        self.events.append(document)


def make_document(field: str) -> Json:
    """A job whose spec has an unknown field."""
    metadata = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 1}
    metadata["resourceVersion"] = "7"
    return {"metadata": metadata, "spec": {"replicas": 1, field: 1}}


@asynccontextmanager
async def reconciler_of(server: Server) -> AsyncIterator[reconcile.Reconciler]:
    """A reconciler beside this server."""
    async with aiohttp.ClientSession() as session:
        coordinators = Coordinators(session, lambda _key: None)
        nodes = NodeWatch(server, allowed=False)
        executor = Executor(server, coordinators, SETTINGS, KEYS)
        yield reconcile.Reconciler(server, coordinators, executor, nodes, SETTINGS, JobSeries())


async def test_events_that_exist_are_remembered_and_the_oldest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile, "EVENTS_REMEMBERED", 3)
    server = Server(make_document("first"))
    async with reconciler_of(server) as reconciler:

        async def events_about(field: str) -> int:
            server.document = make_document(field)
            server.events.clear()
            await reconciler.reconcile(("a", "gpt"))
            return len(server.events)

        assert await events_about("first") == 1
        assert await events_about("first") == 0
        for number in range(3):
            assert await events_about(f"other{number}") == 1
        assert await events_about("first") == 1, "its name was forgotten for newer ones"


async def test_the_status_alone_is_written_over_the_object_that_was_read() -> None:
    server = Server(make_document("first"))
    async with reconciler_of(server) as reconciler:
        await reconciler.reconcile(("a", "gpt"))
    ((status, present),) = server.statuses
    assert present == Identity("uid-1", "7")
    assert "spec" not in status
    assert status["observedGeneration"] == 1


async def test_the_message_shows_at_once_what_is_wrong_and_steps_alone_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    document = make_document("first")
    server = Server(document)
    async with reconciler_of(server) as reconciler:

        async def written(message: str, hindrance: str | None) -> bool:
            status = TrainingJobStatus(phase="Running", message=message)
            monkeypatch.setattr(
                reconcile, "plan", lambda *_: Plan(status, requeue_after=1.0, hindrance=hindrance)
            )
            before = len(server.statuses)
            await reconciler.reconcile(("a", "gpt"))
            if server.statuses:
                document["status"] = server.statuses[-1][0]
            return len(server.statuses) > before

        assert await written("step 1", None)
        assert not await written("step 2", None)
        assert await written("step 3; no answer: it takes too long", "CoordinatorUnreachable")
        assert not await written("step 3; no answer: refused", "CoordinatorUnreachable")
        assert await written("step 4", None)
        assert not await written("step 5", None)


async def test_a_job_that_cannot_be_read_is_named_once_and_read_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    problem = "cannot read the answer: it has more than 4194304 bytes"
    server = Server(UnreadableError("GET", "/jobs/gpt", 0, problem))
    counted = unreadable.labels(name="trainingjobs")._value.get()
    async with reconciler_of(server) as reconciler:
        for _ in range(2):
            assert await reconciler.reconcile(("a", "gpt")) == reconcile.UNREADABLE_SECONDS
    (event,) = server.events
    assert event["involvedObject"]["name"] == "gpt"
    assert event["reason"] == "Unreadable"
    assert problem in event["message"]
    assert "a/gpt: skipped" in caplog.text
    assert unreadable.labels(name="trainingjobs")._value.get() == counted + 2
