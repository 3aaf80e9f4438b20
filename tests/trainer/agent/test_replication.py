"""Copies of shards at a neighbour's: real HTTP on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import xxhash
from aiohttp import web
from aiohttp.test_utils import TestServer

from regroup_trainer.agent import replication
from regroup_trainer.agent.replication import SnapshotSender, SnapshotServer, neighbour_of
from regroup_trainer.agent.snapshot_store import SnapshotStore
from regroup_trainer.coordinator.formation import make_record
from regroup_trainer.protocol.generation import GenerationNumber, GenerationRecord, SnapshotNumber
from regroup_trainer.protocol.rank_messages import SnapshotFile, SnapshotTaken
from regroup_trainer.snapshots.places import REST, TENSORS, held_file, path_on_agent, slot_file
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_generation, make_hello

TOKEN = "t0ken"
NUMBER = SnapshotNumber(10, GenerationNumber(1, 1), 2)
CONTENTS = {TENSORS: bytes(range(256)) * 9000, REST: b"rest"}
"""The tensors are longer than one piece."""


@dataclass
class Worker:
    """The part of an agent that receives copies."""

    store: SnapshotStore
    generation: GenerationNumber = NUMBER.generation
    endpoint: str = ""
    stored: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Worker]:
    worker = Worker(SnapshotStore(folder, ranks=1))
    application = web.Application()
    endpoints = SnapshotServer(
        worker.store,
        TOKEN,
        lambda number: number.generation == worker.generation,
        worker.stored.set,
    )
    endpoints.add_to(application.router)
    async with TestServer(application) as server:
        worker.endpoint = f"{server.host}:{server.port}"
        yield worker


def write_shard(store: SnapshotStore, shard: int = 0) -> None:
    for name, content in CONTENTS.items():
        slot_file(store.folder, 0, 0, name).write_bytes(content)
    files = {
        name: SnapshotFile(len(c), xxhash.xxh3_64(c).hexdigest()) for name, c in CONTENTS.items()
    }
    report = SnapshotTaken(
        generation=NUMBER.generation, rank=0, number=NUMBER, shard=shard, slot=0, files=files
    )
    store.take(report, 0)


def pair(first: str, second: str) -> GenerationRecord:
    record = make_generation(1, 1)
    endpoints = zip(record.members, (first, second), strict=True)
    members = tuple(
        place.model_copy(update={"endpoint": endpoint}) for place, endpoint in endpoints
    )
    return record.model_copy(update={"members": members})


@pytest.fixture
def refusals() -> list[str]:
    """The reasons why a neighbour had no memory."""
    return []


@pytest.fixture
async def sender(
    tmp_path: Path, refusals: list[str]
) -> AsyncIterator[tuple[SnapshotSender, SnapshotStore]]:
    store = SnapshotStore(tmp_path / "own", ranks=1)
    sender = SnapshotSender(store, TOKEN, lambda number, why: refusals.append(why))
    yield sender, store
    sender.stop()


async def test_a_shard_arrives_whole_at_the_next_member(
    tmp_path: Path, sender: tuple[SnapshotSender, SnapshotStore]
) -> None:
    sends, store = sender
    async with serving(tmp_path / "next") as neighbour:
        write_shard(store)
        record = pair("nowhere:1", neighbour.endpoint)
        sends.begin(record, record.members[0].member)
        sends.send(NUMBER, 0)
        async with asyncio.timeout(30):
            await neighbour.stored.wait()
        for name, content in CONTENTS.items():
            copy = held_file(neighbour.store.folder, NUMBER, 0, name)
            assert copy.read_bytes()[: len(content)] == content


async def test_a_neighbour_that_enters_the_generation_later_is_asked_again(
    tmp_path: Path, sender: tuple[SnapshotSender, SnapshotStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "RETRY_SECONDS", 0.01)
    sends, store = sender
    async with serving(tmp_path / "next") as neighbour:
        neighbour.generation = GenerationNumber(1, 0)
        write_shard(store)
        record = pair("nowhere:1", neighbour.endpoint)
        sends.begin(record, record.members[0].member)
        sends.send(NUMBER, 0)
        await refusal(neighbour)
        assert neighbour.store.held() == ()
        neighbour.generation = NUMBER.generation
        async with asyncio.timeout(30):
            await neighbour.stored.wait()


async def refusal(neighbour: Worker) -> None:
    """Wait until a request is refused, so that those before it were answered, too."""
    assert await put(neighbour, b"", {}) == 409


async def put(
    worker: Worker,
    body: bytes,
    files: dict[str, tuple[int, str]],
    token: str = TOKEN,
    number: SnapshotNumber = NUMBER,
) -> int:
    headers = {"Authorization": f"Bearer {token}", replication.FILES_HEADER: json.dumps(files)}
    url = f"http://{worker.endpoint}{path_on_agent(number, 1, '')}"
    async with (
        aiohttp.ClientSession() as session,
        session.put(url, data=body, headers=headers) as response,
    ):
        return response.status


def announced(body: bytes, *, checksum: str = "", size: int = 0) -> dict[str, tuple[int, str]]:
    checksum = checksum or xxhash.xxh3_64(body).hexdigest()
    return {TENSORS: (size or len(body), checksum), REST: (0, xxhash.xxh3_64(b"").hexdigest())}


async def test_only_content_that_matches_its_checksums_is_stored(tmp_path: Path) -> None:
    body = b"shard" * 1000
    async with serving(tmp_path / "next") as worker:
        assert await put(worker, body, announced(body, checksum="0" * 16)) == 422
        assert await put(worker, body, announced(body, size=len(body) + 1)) == 422
        assert await put(worker, body + b"more", announced(body)) == 422
        assert worker.store.held() == ()
        assert await put(worker, body, announced(body)) == 204
        assert [held.shards for held in worker.store.held()] == [(1,)]


@pytest.mark.parametrize(
    "files",
    [
        {TENSORS: (5000, "x")},
        {},
        {TENSORS: (10**12, "x"), REST: (-(10**12), "x")},
        {TENSORS: (-1, "x"), REST: (0, "x")},
        {TENSORS: (1 << 70, "x"), REST: (0, "x")},
        {TENSORS: (5, "x"), REST: (0, "x"), "more": (5, "x")},
    ],
)
async def test_sizes_that_cannot_be_are_refused_before_memory_is_taken(
    tmp_path: Path, files: dict[str, tuple[int, str]]
) -> None:
    async with serving(tmp_path / "next") as worker:
        assert await put(worker, b"shard", files) == 400
        assert worker.store.held() == ()
        assert worker.store._free == []


async def test_a_shard_that_the_snapshot_does_not_have_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "next") as worker:
        one = NUMBER._replace(shards=1)  # `put` sends shard 1
        assert await put(worker, b"shard", announced(b"shard"), number=one) == 400


async def test_a_wrong_token_and_another_generation_are_refused(tmp_path: Path) -> None:
    body = b"shard"
    other = NUMBER._replace(generation=GenerationNumber(1, 2))
    async with serving(tmp_path / "next") as worker:
        assert await put(worker, body, announced(body), token="other") == 401
        assert await put(worker, body, announced(body), number=other) == 409
        url = f"http://{worker.endpoint}{path_on_agent(NUMBER, 0, TENSORS)}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            assert response.status == 401
        assert worker.store.held() == ()


async def test_a_copy_that_does_not_fit_in_memory_is_refused_and_reported_once(
    tmp_path: Path,
    sender: tuple[SnapshotSender, SnapshotStore],
    refusals: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    available = iter([100, 100])
    monkeypatch.setattr(replication, "available_bytes", lambda: next(available, 1 << 40))
    monkeypatch.setattr(replication, "RETRY_SECONDS", 0.01)
    sends, store = sender
    async with serving(tmp_path / "next") as neighbour:
        write_shard(store)
        record = pair("nowhere:1", neighbour.endpoint)
        sends.begin(record, record.members[0].member)
        sends.send(NUMBER, 0)
        async with asyncio.timeout(30):
            await neighbour.stored.wait()
    assert [why.partition(": ")[2] for why in refusals] == [replication.NO_MEMORY]


async def test_a_shard_can_be_fetched_with_its_checksum(tmp_path: Path) -> None:
    async with serving(tmp_path / "own") as worker:
        write_shard(worker.store)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.get(
                f"http://{worker.endpoint}{path_on_agent(NUMBER, 0, TENSORS)}"
            ) as response:
                assert await response.read() == CONTENTS[TENSORS]
                assert (
                    response.headers["X-Checksum"] == xxhash.xxh3_64(CONTENTS[TENSORS]).hexdigest()
                )
            async with session.get(
                f"http://{worker.endpoint}{path_on_agent(NUMBER, 1, TENSORS)}"
            ) as response:
                assert response.status == 404


def test_the_neighbour_is_the_next_member_and_the_last_ones_is_the_first() -> None:
    record = pair("a:1", "b:1")
    first, second = (place.member for place in record.members)
    assert neighbour_of(record, first) == "b:1"
    assert neighbour_of(record, second) == "a:1"
    assert neighbour_of(record, "no member") == ""
    alone = record.model_copy(update={"members": record.members[:1]})
    assert neighbour_of(alone, first) == ""


def test_the_neighbour_is_on_another_node() -> None:
    record = on_nodes("a", "a", "b", "b")
    assert [neighbour_of(record, place.member) for place in record.members] == [
        "h2:1",
        "h3:1",
        "h0:1",
        "h1:1",
    ]


def on_nodes(*nodes: str) -> GenerationRecord:
    """A generation with a member on each node. Their endpoints are h0:1, h1:1 and so on."""
    hellos = [
        make_hello(index, node=node, endpoint=f"h{index}:1") for index, node in enumerate(nodes)
    ]
    return make_record(NUMBER.generation, hellos, make_desired(), ("Nothing", "test"))


async def test_what_every_member_has_is_not_sent(
    sender: tuple[SnapshotSender, SnapshotStore],
) -> None:
    sends, _ = sender
    record = pair("nowhere:1", "nowhere:2")
    sends.begin(record, record.members[0].member)
    sends.send(NUMBER._replace(shards=1), 0)
    assert sends._working is None
