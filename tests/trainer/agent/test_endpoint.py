"""The coordinator's new address, as the operator sends it to a worker pod."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from regroup_trainer.agent.agent_metrics import AgentMetrics
from regroup_trainer.agent.endpoint import UNPROVEN_CONNECTIONS, port_of, start_endpoint
from regroup_trainer.agent.heartbeat import Heartbeat
from regroup_trainer.agent.replication import SnapshotServer
from regroup_trainer.agent.snapshot_store import SnapshotStore
from regroup_trainer.protocol.agent_messages import RankStack, WorkerStacks
from regroup_trainer.protocol.desired import CoordinatorContact
from tests.support.waiting import wait_until

TOKEN = "s3cret"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Endpoint:
    url: str
    addresses: list[str] = field(default_factory=list)

    async def put(self, body: str, headers: dict[str, str]) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.put(f"{self.url}/v1/coordinator", data=body, headers=headers) as answer,
        ):
            return answer.status

    async def contact(self, headers: dict[str, str]) -> tuple[int, str]:
        return await self.get("/v1/coordinator", headers)

    async def get(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{self.url}{path}", headers=headers) as answer,
        ):
            return answer.status, await answer.text()


@pytest.fixture
async def endpoint(tmp_path: Path) -> AsyncIterator[Endpoint]:
    snapshots = SnapshotServer(
        SnapshotStore(tmp_path / "store", ranks=1), TOKEN, lambda _number: True, lambda: None
    )
    addresses: list[str] = []
    contact = CoordinatorContact(term=2, unanswered_seconds=3.5)

    async def show_stacks() -> WorkerStacks:
        return WorkerStacks(ranks=(RankStack(rank=3, text="File"),))

    runner = await start_endpoint(
        AgentMetrics("default", "gpt"), snapshots, addresses.append, lambda: contact, show_stacks, 0
    )
    yield Endpoint(f"http://127.0.0.1:{port_of(runner, '127.0.0.1')}", addresses)
    await runner.cleanup()


async def test_the_address_is_taken_from_who_has_the_token(endpoint: Endpoint) -> None:
    body = '{"url": "http://198.18.0.7:8471"}'
    assert await endpoint.put(body, {}) == 401
    assert await endpoint.put(body, {"Authorization": "Bearer other"}) == 401
    assert endpoint.addresses == []
    assert await endpoint.put(body, BEARER) == 204
    assert await endpoint.put('{"url": "http://[2001:db8::7]:8471"}', BEARER) == 204
    assert endpoint.addresses == ["http://198.18.0.7:8471", "http://[2001:db8::7]:8471"]


@pytest.mark.parametrize(
    "body",
    [
        "",
        "[]",
        "{}",
        '{"url": 7}',
        '{"url": "https://h:1"}',
        '{"url": "http://h"}',
        '{"url": "http://h:65536"}',
        '{"url": "http://[2001:db8::7:8471"}',
        '{"url": "http://h:1/path"}',
        '{"url": "http://%s:1"}' % ("h" * 300),
    ],
)
async def test_what_is_no_address_is_refused(endpoint: Endpoint, body: str) -> None:
    assert await endpoint.put(body, BEARER) == 422
    assert endpoint.addresses == []


async def test_who_has_the_token_is_shown_what_the_ranks_do(endpoint: Endpoint) -> None:
    assert (await endpoint.get("/v1/stacks", {}))[0] == 401
    status, text = await endpoint.get("/v1/stacks", BEARER)
    assert status == 200
    assert WorkerStacks.model_validate_json(text).ranks == (RankStack(rank=3, text="File"),)


async def test_who_has_the_token_learns_when_the_coordinator_last_answered(
    endpoint: Endpoint,
) -> None:
    assert (await endpoint.contact({}))[0] == 401
    assert (await endpoint.contact({"Authorization": "Bearer other"}))[0] == 401
    status, text = await endpoint.contact(BEARER)
    assert status == 200
    assert CoordinatorContact.model_validate_json(text).unanswered_seconds == 3.5


async def test_who_floods_the_port_with_idle_connections_keeps_nobody_out(
    endpoint: Endpoint,
) -> None:
    port = int(endpoint.url.rpartition(":")[2])
    flood = [
        await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * UNPROVEN_CONNECTIONS)
    ]
    async with asyncio.timeout(20):
        for reader, _writer in flood[:UNPROVEN_CONNECTIONS]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "it is closed"
    assert (await endpoint.contact(BEARER))[0] == 200
    for _reader, writer in flood:
        writer.close()


async def test_requests_without_the_token_hold_no_connection(endpoint: Endpoint) -> None:
    port = int(endpoint.url.rpartition(":")[2])
    held = []
    for _ in range(2 * UNPROVEN_CONNECTIONS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(20):
            assert b" 200 " in await reader.readline()
        held.append((reader, writer))
    async with asyncio.timeout(20):
        for reader, _writer in held[:UNPROVEN_CONNECTIONS]:
            with contextlib.suppress(ConnectionError):
                await reader.read()
                assert reader.at_eof(), "it is closed"
    assert (await endpoint.contact(BEARER))[0] == 200
    for _reader, writer in held:
        writer.close()


async def test_a_token_that_is_no_text_is_a_wrong_one(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    port = int(endpoint.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v1/coordinator HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer \xff\r\n\r\n")
    async with asyncio.timeout(10):
        assert b" 401 " in await reader.readline()
    writer.close()
    assert caplog.text == ""


async def test_heartbeats_follow_the_coordinator(endpoint: Endpoint) -> None:
    unknown: list[float] = []
    heartbeat = Heartbeat("http://127.0.0.1:9", TOKEN, "uid-0", 0, 0.02, unknown.append)
    heartbeat.start()
    heartbeat.url = endpoint.url  # which answers 404: it is no coordinator
    await asyncio.to_thread(wait_until, "an answer from the new address", lambda: unknown)
    heartbeat.stop()
    await asyncio.to_thread(heartbeat.join, 5)
