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
from regroup_operator.controller.operator_metrics import JobSeries

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
