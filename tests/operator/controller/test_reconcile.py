"""The reconciler's own memory, beside an API server that refuses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from regroup_operator.api.settings import Settings
from regroup_operator.controller import reconcile
from regroup_operator.controller.cluster import Cluster
from regroup_operator.controller.coordination import Coordinators
from regroup_operator.controller.node_watch import NodeWatch
from regroup_operator.controller.operator_metrics import JobSeries, internal_errors
from tests.support.operator_simulation import make_spec

Json = dict[str, Any]


class Server(Cluster):
    """One job with an invalid spec, and the events about it."""

    def __init__(self, document: Json) -> None:
        self.document = document
        self.events: list[str] = []

    async def job(self, *_: Any) -> Json:
        return self.document

    async def pods(self, *_: Any) -> list[Json]:
        return []

    async def service(self, *_: Any) -> None:
        return None

    async def disruption_budget(self, *_: Any) -> None:
        return None

    async def replace_status(self, document: Json) -> Json:
        return document

    async def create_event(self, document: Json) -> None:
        self.events.append(document["message"])


def make_document(field: str) -> Json:
    """A job whose spec has an unknown field."""
    metadata = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 1}
    return {"metadata": metadata, "spec": {"replicas": 1, field: 1}}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text("0123456789abcdef")
    return file


async def test_events_that_exist_are_remembered_and_the_oldest_are_forgotten(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "EVENTS_REMEMBERED", 3, raising=False)
    server = Server(make_document("first"))
    settings = Settings(trainer_image="t", coordinator_image="c", key_file=key_file)
    async with aiohttp.ClientSession() as session:
        reconciler = reconcile.Reconciler(
            server,
            Coordinators(session, lambda _key: None),
            NodeWatch(server, allowed=False),
            settings,
            JobSeries(),
        )

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


class PlainServer(Server):
    """One job, its statuses as they are written, and the pods that are made."""

    def __init__(self, document: Json) -> None:
        super().__init__(document)
        self.made: list[str] = []

    async def network_policy(self, *_: Any) -> None:
        return None

    async def claim(self, namespace: str, name: str) -> Json:
        return {
            "metadata": {"name": name, "namespace": namespace},
            "kind": "PersistentVolumeClaim",
            "spec": {"accessModes": ["ReadWriteMany"]},
        }

    async def replace_status(self, document: Json) -> Json:
        self.document = document
        return document

    async def create_pod(self, document: Json) -> None:
        self.made.append(document["metadata"]["name"])

    async def create_secret(self, document: Json) -> None:
        """The Secret with the token is of no interest here."""

    create_service = create_network_policy = create_secret


async def test_an_unknown_error_is_shown_once_and_uses_up_no_term(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Json:
        raise ZeroDivisionError("by zero")

    metadata = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 4}
    server = PlainServer({"metadata": metadata, "spec": make_spec(networkPolicy="None")})
    settings = Settings(trainer_image="t", coordinator_image="c", key_file=key_file)
    errors = internal_errors._value.get()
    async with aiohttp.ClientSession() as session:
        reconciler = reconcile.Reconciler(
            server,
            Coordinators(session, lambda _key: None),
            NodeWatch(server, allowed=False),
            settings,
            JobSeries(),
        )
        await reconciler.reconcile(("a", "gpt"))
        terms = server.document["status"].get("coordinatorTerm", 0)
        with monkeypatch.context() as patched:
            patched.setattr("regroup_operator.render.workload.coordinator_pod", fails)
            patched.setattr("regroup_operator.render.workload.worker_pod", fails)
            server.made.clear()
            for _ in range(3):
                with pytest.raises(ZeroDivisionError):
                    await reconciler.reconcile(("a", "gpt"))
        status = server.document["status"]
        ready = next(c for c in status["conditions"] if c["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "InternalError")
        assert "ZeroDivisionError: by zero" in status["message"] == ready["message"]
        assert status["observedGeneration"] == ready["observedGeneration"] == 4
        assert status.get("coordinatorTerm", 0) == terms
        assert server.made == []
        assert len([text for text in server.events if "ZeroDivisionError" in text]) == 1
        assert internal_errors._value.get() == errors + 3
        await reconciler.reconcile(("a", "gpt"))
        assert "ZeroDivisionError" not in server.document["status"]["message"]
        assert server.made, "the job goes on once the error is gone"


async def test_a_template_that_no_pod_can_be_made_of_is_refused_before_anything_exists(
    key_file: Path,
) -> None:
    metadata = {"namespace": "a", "name": "gpt", "uid": "uid-1", "generation": 4}
    spec = make_spec(resources={"limits": {"cpu": "banana"}})
    server = PlainServer({"metadata": metadata, "spec": spec})
    settings = Settings(trainer_image="t", coordinator_image="c", key_file=key_file)
    async with aiohttp.ClientSession() as session:
        reconciler = reconcile.Reconciler(
            server,
            Coordinators(session, lambda _key: None),
            NodeWatch(server, allowed=False),
            settings,
            JobSeries(),
        )
        await reconciler.reconcile(("a", "gpt"))
    status = server.document["status"]
    ready = next(c for c in status["conditions"] if c["type"] == "Ready")
    assert ready["reason"] == "InvalidSpec"
    assert "spec.resources.limits[cpu]" in ready["message"]
    assert server.made == []
