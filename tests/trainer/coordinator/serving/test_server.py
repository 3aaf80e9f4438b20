"""A real server on loopback: token, protocol version, bounds, long poll, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from regroup_trainer.agent.coordinator_connection import CoordinatorConnection, RejectedError
from regroup_trainer.agent.heartbeat import Heartbeat
from regroup_trainer.coordinator.coordinator_status import CONTACT_SECONDS, agents_in_contact
from regroup_trainer.coordinator.core import MOST_UNKNOWN, TICK_SECONDS, Coordinator
from regroup_trainer.coordinator.effects import Effect
from regroup_trainer.coordinator.serving import arrivals, volume_work
from regroup_trainer.coordinator.serving import server as server_module
from regroup_trainer.coordinator.serving.arrivals import read_hello
from regroup_trainer.coordinator.serving.number_files import reserve
from regroup_trainer.coordinator.serving.server import (
    LONGEST_DELAY_SECONDS,
    MOST_WATCHES,
    Server,
)
from regroup_trainer.protocol.agent_messages import Leaving, Reports
from regroup_trainer.protocol.coordinator_messages import BeginDifference, Refused, sent_message
from regroup_trainer.protocol.desired import LastKnown, Lost
from regroup_trainer.protocol.environment import LOG_FORMAT
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorStatus, RequestAnswer, Waiting
from regroup_trainer.protocol.ledger import Ledger
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from regroup_trainer.protocol.rank_messages import Busy, Progress
from regroup_trainer.system import newest_first
from regroup_trainer.system.log_lines import MOST_RECORDS
from regroup_trainer.system.server_connections import ANSWERED_UNPROVEN, SPARE_CONNECTIONS
from tests.support.coordinator_server import (
    BEARER,
    TOKEN,
    Setup,
    coordinator_process,
    serving,
    status_of,
)
from tests.support.coordinator_simulation import make_desired
from tests.support.generations import make_hello
from tests.support.logged_lines import FORMS, subjects_of
from tests.support.open_files import few_open_files
from tests.support.waiting import until, wait_until

SELDOM = 0.3
FIRST = GenerationNumber(1, 1)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with serving(tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    "header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}]
)
@pytest.mark.parametrize(
    "route",
    [
        *("GET status", "GET watch", "PUT desired", "POST lost", "GET agent", "POST heartbeat/x"),
        "GET heartbeats/0?member=x",
    ],
)
async def test_everything_below_v1_wants_the_token(
    setup: Setup, header: dict[str, str], route: str
) -> None:
    method, path = route.split()
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{setup.url}/v1/{path}", headers=header) as response,
    ):
        assert response.status == 401


async def test_a_token_that_is_no_text_is_a_wrong_one(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = setup.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /v1/status HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer \xff\r\n\r\n")
    async with asyncio.timeout(10):
        assert b" 401 " in await reader.readline()
    writer.close()
    assert caplog.text == ""


async def test_health_and_metrics_are_open(setup: Setup) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("healthz", "metrics"):
            async with session.get(f"{setup.url}/{path}") as response:
                assert response.status == 200


async def test_an_agent_with_a_wrong_token_gives_up_with_a_sentence(setup: Setup) -> None:
    connection = CoordinatorConnection(setup.url, "wrong", 1, make_hello, lambda message: None)
    with pytest.raises(RejectedError, match="token"):
        await asyncio.wait_for(connection.run(), 10)


async def test_an_agent_of_another_protocol_version_is_refused_with_both_versions(
    setup: Setup,
) -> None:
    hello = json.loads(make_hello().shortened().model_dump_json())
    async with setup.session.ws_connect(f"{setup.url}/v1/agent") as socket:
        await socket.send_str(json.dumps({**hello, "protocol": 99, "something": "new"}))
        refused = sent_message.validate_json(await socket.receive_str())
    assert refused.kind == "refused"
    assert refused.final
    assert "99" in refused.reason
    assert f"version {PROTOCOL_VERSION}:" in refused.reason


async def test_a_final_refusal_ends_the_agents_connection(setup: Setup) -> None:
    connection = CoordinatorConnection(
        setup.url, TOKEN, 1, lambda: make_hello(protocol=99), lambda message: None
    )
    with pytest.raises(RejectedError, match="protocol version 99"):
        await asyncio.wait_for(connection.run(), 10)


async def test_a_welcomed_agent_gets_its_generation_and_the_number_is_reserved(
    setup: Setup, tmp_path: Path
) -> None:
    socket = await setup.join(make_hello())
    assert sent_message.validate_json(await socket.receive_str(timeout=10)).kind == "welcome"
    begin = sent_message.validate_json(await socket.receive_str(timeout=10))
    assert isinstance(begin, BeginDifference)
    assert (tmp_path / "job/lineage" / f"1-{begin.number.n}.claim").exists()
    await socket.close()


async def test_a_message_to_many_agents_is_serialised_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serialised = []

    def dump(message: BeginDifference) -> str:
        serialised.append(message.number)
        return BaseModel.model_dump_json(message)

    monkeypatch.setattr(BeginDifference, "model_dump_json", dump)
    async with serving(tmp_path, replicas=3, min_replicas=3) as setup:
        sockets = [await setup.join(make_hello(index)) for index in range(3)]
        for socket in sockets:
            await socket.receive_str(timeout=60)  # welcome
        begins = {await socket.receive_str(timeout=60) for socket in sockets}
        assert len(begins) == 1
        for socket in sockets:
            await socket.close()
    assert len(serialised) == len({*serialised})


def ticks_of(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Every tick from now on: when it was, and until when all heartbeats were read."""
    ticks: list[tuple[float, float]] = []
    tick = setup.core.tick

    def noted(now: float, read_until: float, reported_until: float) -> list[Effect]:
        ticks.append((now, read_until))
        return tick(now, read_until, reported_until)

    monkeypatch.setattr(setup.core, "tick", noted)
    return ticks


async def test_a_steady_coordinator_ticks_seldom_and_wakes_at_once(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = ticks_of(setup, monkeypatch)
    monkeypatch.setattr(setup.core, "pause", lambda _: SELDOM)
    socket = await setup.join(make_hello())
    await asyncio.to_thread(wait_until, "ticks", lambda: len(ticks) > 5)
    pauses = [later - earlier for (earlier, _), (later, _) in pairwise(ticks[2:5])]
    assert min(pauses) > 0.9 * SELDOM
    monkeypatch.setattr(setup.core, "pause", lambda _: TICK_SECONDS)
    await socket.close()
    count = len(ticks)
    await asyncio.to_thread(wait_until, "ticks", lambda: len(ticks) > count + 20)
    assert ticks[-1][0] - ticks[count][0] < 20 * SELDOM / 2


async def test_nobody_is_blamed_for_heartbeats_whose_connection_is_not_served_yet(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = ticks_of(setup, monkeypatch)
    monkeypatch.setattr(newest_first, "MOST_SERVED", 0)
    host, port = setup.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    begun = time.monotonic()
    await asyncio.to_thread(wait_until, "ticks", lambda: len(ticks) > 20)
    assert ticks[-1][1] < begun + 1 and ticks[-1][1] == ticks[-10][1]
    writer.close()
    await asyncio.to_thread(
        wait_until, "the peer to give up", lambda: ticks[-1][1] != ticks[-10][1]
    )


async def test_an_unknown_message_closes_the_connection(setup: Setup) -> None:
    socket = await setup.join(make_hello())
    await socket.send_str('{"kind": "gossip"}')
    async with asyncio.timeout(10):
        async for _ in socket:
            pass
    assert socket.close_code == 1008


async def test_a_long_poll_returns_on_news_and_not_before(tmp_path: Path) -> None:
    async with serving(tmp_path, timeout_milliseconds=600_000) as setup:
        reserved = tmp_path / "job/lineage/1-1.claim"
        await asyncio.to_thread(wait_until, "the first tick", reserved.exists)
        first = await setup.status()
        polling = asyncio.create_task(setup.status(after=first.sequence, wait=30))
        for _ in range(3):
            assert (await setup.status()).sequence == first.sequence
        assert not polling.done()
        socket = await setup.join(make_hello())
        news = await asyncio.wait_for(polling, 10)
        assert news.sequence > first.sequence
        await socket.close()


async def test_a_request_for_a_checkpoint_is_news(tmp_path: Path) -> None:
    async with serving(tmp_path, timeout_milliseconds=600_000) as setup:
        reserved = tmp_path / "job/lineage/1-1.claim"
        await asyncio.to_thread(wait_until, "the first tick", reserved.exists)
        first = await setup.status()
        polling = asyncio.create_task(setup.status(after=first.sequence, wait=30))
        asked = setup.core.state.desired.model_copy(update={"checkpoint_request": "now-1"})
        data = asked.model_dump_json()
        async with setup.session.put(f"{setup.url}/v1/desired", data=data) as answer:
            assert answer.status == 204
        news = await asyncio.wait_for(polling, 60)
    assert news.sequence > first.sequence
    assert news.checkpoint_answer == RequestAnswer(request="now-1")


async def statuses(watch: aiohttp.ClientResponse) -> AsyncIterator[CoordinatorStatus]:
    """Those of its lines, until it ends."""
    async for line in watch.content:
        if line != b"\n":
            yield CoordinatorStatus.parse(line.decode())


async def test_a_watch_sends_each_change_and_ends_with_the_coordinator(setup: Setup) -> None:
    async with asyncio.timeout(60), setup.session.get(f"{setup.url}/v1/watch") as watch:
        lines = statuses(watch)
        first = await anext(lines)
        assert (first.phase, first.members) == ("waiting", ())
        socket = await setup.join(make_hello())
        async for status in lines:
            if status.members and status.phase == "starting":
                break
        await setup.server.hand_over(0.0, 0.0)
        assert await anext(lines, None) is None
        await socket.close()


async def test_a_watch_of_which_nothing_changes_has_an_empty_line_a_second(setup: Setup) -> None:
    async with (
        asyncio.timeout(60),
        setup.session.get(f"{setup.url}/v1/watch?every=-3") as watch,
        setup.session.get(f"{setup.url}/v1/watch?every=nan") as refused,
    ):
        assert refused.status == 400
        lines, times = [await watch.content.readline()], []
        while lines[-3:] != [b"\n"] * 3:
            lines.append(await watch.content.readline())
            times.append(time.monotonic())
        assert times[-1] - times[-3] >= 1.5
        assert CoordinatorStatus.parse(lines[0].decode()).term == 1


async def test_the_newest_watch_takes_the_place_of_the_oldest(setup: Setup) -> None:
    """An operator that died without a word must not keep its successor out."""
    async with contextlib.AsyncExitStack() as opened, asyncio.timeout(60):
        watches = [
            await opened.enter_async_context(setup.session.get(f"{setup.url}/v1/watch"))
            for _ in range(MOST_WATCHES)
        ]
        for watch in watches:
            await watch.content.readline()
        newest = await opened.enter_async_context(setup.session.get(f"{setup.url}/v1/watch"))
        assert CoordinatorStatus.parse((await newest.content.readline()).decode()).term == 1
        with pytest.raises(aiohttp.ClientError):
            await watches[0].content.read()
        assert await watches[1].content.readline() == b"\n"


async def test_watches_leave_the_agents_their_connections(setup: Setup) -> None:
    async with contextlib.AsyncExitStack() as opened, asyncio.timeout(60):
        for _ in range(60):
            await opened.enter_async_context(setup.session.get(f"{setup.url}/v1/watch"))
        assert setup.server.connections.proven <= MOST_WATCHES + 1
        socket = await setup.join(make_hello())
        kind = sent_message.validate_json(await socket.receive_str(timeout=10)).kind
        assert kind == "welcome"
        await socket.close()


async def test_a_desired_with_a_mistake_is_refused_by_name(setup: Setup) -> None:
    body = make_desired().model_dump_json().replace('"replicas":3', '"replicas":"three"')
    async with setup.session.put(f"{setup.url}/v1/desired", data=body) as response:
        assert response.status == 422
        assert (await response.text()).startswith("replicas: Input should be a valid integer")


def test_a_hello_that_cannot_be_read_is_refused_in_one_line() -> None:
    hello = make_hello().shortened().model_dump() | {"index": "first", "crew": 3}
    refused = read_hello(json.dumps(hello))
    assert isinstance(refused, Refused)
    assert refused.reason.startswith("the agent's hello is not valid: index: Input should be")
    assert "got 'first'; crew is not a known field: run agent and coordinator" in refused.reason
    assert "\n" not in refused.reason


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("highest", [1, 2**70], "highest.1: Input should be less than"),
        ("snapshots", [{"number": [4, [1, 1], 1], "shards": [5]}], "shards: 5 is not below 1"),
    ],
)
async def test_a_hello_with_a_number_that_cannot_be_is_answered_with_its_field(
    setup: Setup, field: str, value: list[Any], named: str
) -> None:
    hello = make_hello().shortened().model_dump() | {field: value}
    async with setup.session.ws_connect(f"{setup.url}/v1/agent") as socket:
        await socket.send_str(json.dumps(hello))
        refused = sent_message.validate_json(await socket.receive_str(timeout=10))
    assert isinstance(refused, Refused)
    assert named in refused.reason


async def test_a_large_body_is_refused(setup: Setup) -> None:
    async with setup.session.put(f"{setup.url}/v1/desired", data=b"x" * 300_000) as response:
        assert response.status == 413


@pytest.mark.parametrize(
    ("text", "delay"), [("0.25", 0.25), ("-3", 0.0), ("1e9", LONGEST_DELAY_SECONDS)]
)
async def test_a_heartbeat_says_how_late_it_was_sent(setup: Setup, text: str, delay: float) -> None:
    await setup.join(make_hello())
    url = f"{setup.url}/v1/heartbeat/uid-0?delay={text}"
    async with setup.session.post(url) as response:
        assert response.status == 204
    assert setup.core.state.members["uid-0"].delay == delay


async def test_a_heartbeat_with_another_delay_is_refused(setup: Setup) -> None:
    async with setup.session.post(f"{setup.url}/v1/heartbeat/uid-0?delay=late") as response:
        assert response.status == 400
        assert "delay='late' is not a number" in await response.text()


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
async def test_a_wait_that_is_not_finite_is_refused_and_not_waited_for(
    setup: Setup, text: str
) -> None:
    url = f"{setup.url}/v1/status?after=1e18&wait={text}"
    async with asyncio.timeout(10), setup.session.get(url) as response:
        assert response.status == 400
        assert f"wait='{text}' is not a number" in await response.text()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("heartbeat_milliseconds", "0"),
        ("heartbeat_milliseconds", "-1"),
        ("timeout_milliseconds", "0"),
        ("start_grace_seconds", "NaN"),
        ("backoff_seconds", "1e999"),
        ("replicas", "99999999999"),
        ("spares", "-1"),
        ("revision", "-1"),
        ("revision", str(2**70)),
        ("max_restarts", "-2"),
    ],
)
async def test_a_desired_with_an_impossible_number_is_refused_by_name(
    setup: Setup, field: str, value: str
) -> None:
    fields = json.loads(make_desired(replicas=2).model_dump_json())
    former = setup.core.state.desired
    body = json.dumps({**fields, "revision": 7, field: "NUMBER"}).replace('"NUMBER"', value)
    async with setup.session.put(f"{setup.url}/v1/desired", data=body) as response:
        assert response.status == 422
        assert field in await response.text()
    assert setup.core.state.desired == former


async def test_an_agents_number_that_is_not_finite_closes_its_connection(setup: Setup) -> None:
    socket = await setup.join(make_hello())
    progress = Progress(generation=FIRST, rank=0, step=1, time=1.0)
    text = Reports(reports=(progress,)).model_dump_json()
    await socket.send_str(text.replace('"time":1.0', '"time":NaN'))
    async with asyncio.timeout(10):
        async for _ in socket:
            pass
    assert socket.close_code == 1008


async def test_messages_of_another_generation_do_not_delay_heartbeats(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them once had all be decided anew, and they were read without a pause. `busy` cannot
    be overtaken by a newer one. CPU seconds of the loop that both ends share are what a heartbeat
    waits for on a machine that has nothing else to do.
    """
    socket = await setup.join(make_hello())
    await asyncio.to_thread(wait_until, "a generation", lambda: setup.core.state.current)
    generation = GenerationNumber(1, 999_999)
    busy = Busy(generation=generation, rank=0, doing="evaluation", step=1)
    text = Reports(reports=(busy,)).model_dump_json()
    seen = setup.core.state.members["uid-0"].last_seen
    on_message, handled = setup.core.on_message, 0

    def count(message: object, name: str, now: float) -> list[Effect]:
        nonlocal handled
        handled += 1
        return on_message(message, name, now)

    async def flood() -> None:
        for _ in range(23_000):
            await socket.send_str(text)

    monkeypatch.setattr(setup.core, "on_message", count)
    flooding = asyncio.create_task(flood())
    costs = list[float]()
    while handled < 23_000:
        began = time.thread_time()
        async with setup.session.post(f"{setup.url}/v1/heartbeat/uid-0") as response:
            assert response.status == 204
        costs.append(time.thread_time() - began)
    await flooding
    assert setup.core.state.members["uid-0"].last_seen > seen
    assert len(costs) > 100, "heartbeats are answered between the messages"
    assert sorted(costs)[len(costs) // 2] < 0.1
    await socket.close()


async def test_agents_get_through_while_idle_connections_fill_the_port(setup: Setup) -> None:
    socket = await setup.join(make_hello())
    assert sent_message.validate_json(await socket.receive_str(timeout=10)).kind == "welcome"
    host, port = setup.url.removeprefix("http://").split(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(200)]
    assert len(setup.server.connections) <= 2 + SPARE_CONNECTIONS
    other = await setup.join(make_hello(1))
    assert sent_message.validate_json(await other.receive_str(timeout=10)).kind == "welcome"
    assert not socket.closed
    assert (await setup.status()).members
    for _, writer in idle:
        writer.close()
    await other.close()
    await socket.close()


async def test_those_without_the_token_have_few_connections_however_many_workers(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, replicas=200, max_replicas=200) as setup:
        host, port = setup.url.removeprefix("http://").split(":")
        asked = []
        for _ in range(100):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
            assert b"200 OK" in await reader.readline()
            asked.append(writer)
        assert len(setup.server.connections) <= ANSWERED_UNPROVEN
        assert (await setup.status()).term == 1
        for writer in asked:
            writer.close()


async def test_agents_that_have_given_up_meanwhile_cost_no_handshake(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator that is behind finds their requests, and the end of their connections."""
    prepared: list[web.WebSocketResponse] = []
    monkeypatch.setattr(web.WebSocketResponse, "prepare", lambda one, _: prepared.append(one))
    host, port = setup.url.removeprefix("http://").split(":")
    text = f"GET /v1/agent HTTP/1.1\r\nHost: h\r\nAuthorization: {BEARER['Authorization']}\r\n"
    text += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    text += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    for _ in range(20):
        with socket.create_connection((host, int(port))) as given_up:
            given_up.sendall(text.encode())
    await until("their end", lambda: len(setup.server.connections) == 0)
    await setup.status()
    assert prepared == []
    assert caplog.text == ""


async def test_an_agent_that_says_nothing_is_not_waited_for(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "HELLO_SECONDS", 0.1)
    async with setup.session.ws_connect(f"{setup.url}/v1/agent") as socket:
        assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.CLOSE


async def test_a_body_that_does_not_arrive_is_not_waited_for(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "BODY_SECONDS", 0.1)

    host, port = setup.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    text = f"PUT /v1/desired HTTP/1.1\r\nHost: h\r\nAuthorization: {BEARER['Authorization']}\r\n"
    writer.write(f"{text}Content-Length: 100000\r\n\r\n".encode())

    async def drip() -> None:
        """A byte now and then, so that the connection is never idle."""
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    async with asyncio.timeout(10):
        assert b" 408 " in await reader.readline()
    dripping.cancel()
    writer.close()


async def test_names_that_nobody_knows_do_not_fill_the_memory(setup: Setup) -> None:
    for number in range(3 * MOST_UNKNOWN):
        setup.core.on_heartbeat(f"made-up-{number}", time.monotonic())
    unknown = setup.core.state.unknown_members
    assert len(unknown) == MOST_UNKNOWN
    assert f"made-up-{3 * MOST_UNKNOWN - 1}" in unknown


async def test_heartbeats_keep_a_member_until_the_operator_reports_it_lost(setup: Setup) -> None:
    unknown = threading.Event()
    heartbeat = Heartbeat(setup.url, TOKEN, "uid-0", 0, 0.05, lambda _at: unknown.set())
    heartbeat.start()
    importing = setup.core.state.importing
    await asyncio.to_thread(wait_until, "a worker that imports torch", lambda: 0 in importing)
    assert not unknown.is_set()
    assert (await setup.status()).agents_in_contact == ("uid-0",)
    socket = await setup.join(make_hello())
    assert (await setup.status()).agents_in_contact == ()
    heartbeat.is_warm = True
    members = setup.core.state.members
    await asyncio.to_thread(wait_until, "a member", lambda: members)
    timeout = setup.core.state.desired.timeout_milliseconds / 1000
    beyond = members["uid-0"].last_seen + timeout + 0.5
    await asyncio.to_thread(
        wait_until, "heartbeats beyond the timeout", lambda: members["uid-0"].last_seen > beyond
    )
    assert [member.lost for member in (await setup.status()).members] == [""]
    assert not unknown.is_set()
    lost = Lost(members=("uid-0",), reason="node NotReady").model_dump_json()
    async with setup.session.post(f"{setup.url}/v1/lost", data=lost) as response:
        assert response.status == 204
    assert [member.lost for member in (await setup.status()).members] == ["node NotReady"]
    assert await asyncio.to_thread(unknown.wait, 5)
    heartbeat.stop()
    await asyncio.to_thread(heartbeat.join, 5)
    await socket.close()


async def test_an_agent_is_in_contact_as_soon_as_it_starts(setup: Setup) -> None:
    heartbeat = Heartbeat(setup.url, TOKEN, "uid/0", 0, 60.0, lambda _at: None)
    heartbeat.start()
    importing = setup.core.state.importing
    await asyncio.to_thread(wait_until, "a worker that imports torch", lambda: 0 in importing)
    assert (await setup.status()).agents_in_contact == ("uid/0",)
    heartbeat.stop()
    await asyncio.to_thread(heartbeat.join, 5)


async def test_only_recent_signs_of_life_are_reported(setup: Setup) -> None:
    now = time.monotonic()
    for age in range(2000):
        setup.core.on_importing(0, f"uid-{age}", now - age / 100)
    named = agents_in_contact(setup.core.state, now)
    assert named is not None
    assert named[:2] == ("uid-0", "uid-1")
    assert len(named) == CONTACT_SECONDS * 100


async def test_no_contacts_are_reported_where_an_agent_does_not_give_its_name(
    setup: Setup,
) -> None:
    async with setup.session.post(f"{setup.url}/v1/importing/0") as response:
        assert response.status == 204
    assert (await setup.status()).agents_in_contact is None


async def leave(setup: Setup, socket: aiohttp.ClientWebSocketResponse, name: str) -> None:
    """Have an agent ask to leave, and wait until the coordinator knows."""
    await socket.send_str(Leaving(reason="drained").model_dump_json())
    members = setup.core.state.members
    await asyncio.to_thread(
        wait_until, "its message", lambda: name in members and members[name].leaving
    )


async def report_lost(setup: Setup, name: str) -> None:
    """Report that the pod of a member is gone, as the operator does."""
    lost = Lost(members=(name,), reason="its pod is gone").model_dump_json()
    async with setup.session.post(f"{setup.url}/v1/lost", data=lost) as response:
        assert response.status == 204


async def test_a_terminated_coordinator_waits_for_agents_that_leave(setup: Setup) -> None:
    socket = await setup.join(make_hello())
    # An agent that leaves before there is a generation is released at once.
    await asyncio.to_thread(wait_until, "a generation", lambda: setup.core.state.current)
    await socket.send_str(Leaving(reason="drained").model_dump_json())
    members = setup.core.state.members
    await asyncio.to_thread(
        wait_until, "its message", lambda: "uid-0" in members and members["uid-0"].leaving
    )
    handing_over = asyncio.create_task(setup.server.hand_over(0.0, 0.0))
    for _ in range(3):
        await setup.status()
    assert not handing_over.done()
    lost = Lost(members=("uid-0",), reason="its pod is gone").model_dump_json()
    async with setup.session.post(f"{setup.url}/v1/lost", data=lost) as response:
        assert response.status == 204
    await asyncio.wait_for(handing_over, 5)
    await socket.close()


async def test_a_terminated_coordinator_leaves_other_agents_to_its_successor(
    setup: Setup,
) -> None:
    await asyncio.wait_for(setup.server.hand_over(60, 60), 5)


async def test_a_terminated_coordinator_does_not_wait_for_agents_on_other_nodes(
    setup: Setup,
) -> None:
    socket = await setup.join(make_hello())
    await asyncio.to_thread(wait_until, "a member", lambda: setup.core.state.members)
    await asyncio.wait_for(setup.server.hand_over(0.01, 60), 5)
    await socket.close()


async def test_a_terminated_coordinator_waits_for_agents_on_its_node_that_are_drained_later(
    setup: Setup,
) -> None:
    socket = await setup.join(make_hello(node="node-c"))
    await asyncio.to_thread(wait_until, "a generation", lambda: setup.core.state.current)
    handing_over = asyncio.create_task(setup.server.hand_over(0.0, 60))
    for _ in range(3):
        await setup.status()
    assert not handing_over.done()
    await leave(setup, socket, "uid-0")
    assert not handing_over.done(), "its last step is not agreed yet"
    await report_lost(setup, "uid-0")
    await asyncio.wait_for(handing_over, 5)
    await socket.close()


async def test_a_terminated_coordinator_begins_the_generation_that_follows_one_which_has_ended(
    tmp_path: Path,
) -> None:
    """A successor takes seconds to start, in which nobody would train."""
    patient = {"heartbeat_milliseconds": 10_000, "timeout_milliseconds": 30_000}
    async with serving(tmp_path, replicas=3, start_grace_seconds=60.0, **patient) as setup:
        sockets = [await setup.join(make_hello(index)) for index in range(3)]
        first = await asyncio.to_thread(
            wait_until, "a generation", lambda: setup.core.state.current
        )
        await report_lost(setup, "uid-1")
        assert setup.core.state.current is first, "the ranks that are left have not left it yet"
        await asyncio.wait_for(setup.server.hand_over(0.0, 60), 10)
        following = setup.core.state.current
        assert following is not None
        assert following.number > first.number
        for socket in sockets:
            await socket.close()


async def test_a_coordinator_that_is_deleted_alone_does_not_wait_for_ever(setup: Setup) -> None:
    socket = await setup.join(make_hello(node="node-c"))
    await asyncio.to_thread(wait_until, "a member", lambda: setup.core.state.members)
    await asyncio.wait_for(setup.server.hand_over(0.0, 0.1), 5)
    await socket.close()


async def test_a_coordinator_that_has_handed_over_decides_nothing_more(setup: Setup) -> None:
    socket = await setup.join(make_hello())
    await asyncio.to_thread(wait_until, "a generation", lambda: setup.core.state.current)
    await setup.server.hand_over(0.0, 0.0)
    with contextlib.suppress(ConnectionError):
        await socket.send_str(Leaving(reason="drained").model_dump_json())
    async with asyncio.timeout(5):
        async for _ in socket:
            pass
    assert socket.closed, "the agent goes to the successor at once"
    assert not [m for m in setup.core.state.members.values() if m.leaving]
    other = await setup.join(make_hello(1))
    assert (await other.receive()).type is aiohttp.WSMsgType.CLOSE
    assert "uid-1" not in setup.core.state.members
    await other.close()


async def test_the_metrics_carry_the_jobs_name(setup: Setup) -> None:
    async with setup.session.get(f"{setup.url}/metrics") as response:
        text = await response.text()
    series = {
        sample.name: sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert series["trainingjob_world_size"].labels == {"namespace": "default", "trainingjob": "gpt"}
    assert series["trainingjob_world_size"].value == 0
    assert "trainingjob_time_seconds_total" in series
    assert "trainingjob_lost_work_seconds_total" in series


async def test_whoever_reaches_the_port_reads_how_far_the_workers_are(setup: Setup) -> None:
    async def steps() -> object:
        headers = {"Authorization": "none"}
        async with setup.session.get(f"{setup.url}/steps", headers=headers) as answer:
            assert answer.status == 200
            return await answer.json()

    assert await steps() == {"workers": []}
    socket = await setup.join(make_hello())
    await asyncio.to_thread(wait_until, "a generation", lambda: setup.core.state.current)
    assert await steps() == {"workers": [{"index": 0, "step": 0}]}
    await socket.close()


async def test_an_unwritable_volume_is_named_in_the_status(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    now = time.monotonic()
    core = Coordinator(1, "n", make_desired(directory=str(tmp_path / "file" / "job")), now, 0.0)
    server = Server(core, TOKEN)
    ticking = asyncio.create_task(server.run())
    refusal = await asyncio.to_thread(
        wait_until, "the refusal", lambda: find(core.state.waiting, "VolumeUnavailable")
    )
    where = tmp_path / "file" / "job"
    expected = f"its number cannot be reserved in {where}: Not a directory (free space, or make"
    assert expected in refusal.message
    ticking.cancel()


async def test_a_generation_that_was_cut_off_is_found_on_the_volume(tmp_path: Path) -> None:
    for folder, name in (("lineage", "1-2.json"), ("history", "1-2.jsonl")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text("{}\n")
    now, known = time.monotonic(), LastKnown(step=7, time=0.0, world_size=2)
    desired = make_desired(directory=str(tmp_path), last_known=known)
    core = Coordinator(2, "n", desired, now, 0.0)
    ticking = asyncio.create_task(Server(core, TOKEN).run())
    waiting = await asyncio.to_thread(
        wait_until, "the generation", lambda: find(core.state.waiting, "CutOffGeneration")
    )
    assert waiting.message.startswith("generation 1.2 of a former coordinator trains on")
    ticking.cancel()


async def test_agents_are_left_to_a_successor_that_has_reserved_numbers(setup: Setup) -> None:
    socket = await setup.join(make_hello(0))
    assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.TEXT
    reserve(Path(setup.core.state.desired.directory), GenerationNumber(2, 1))
    late = time.monotonic() + 60
    setup.server._do(setup.core.tick(late))
    while (message := await socket.receive(timeout=10)).type is aiohttp.WSMsgType.TEXT:
        pass
    assert message.type is aiohttp.WSMsgType.CLOSE
    other = await setup.join(make_hello(1))
    assert (await other.receive(timeout=10)).type is not aiohttp.WSMsgType.TEXT


async def test_a_volume_that_does_not_answer_is_named_and_its_answer_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, calls = threading.Event(), list[object]()

    def hang(*arguments: Any) -> Any:
        calls.append(arguments)
        assert may_answer.wait(30)
        return reserve(*arguments)

    monkeypatch.setattr(volume_work, "reserve", hang)
    monkeypatch.setattr(volume_work, "VOLUME_SECONDS", 0.1)
    async with serving(tmp_path) as setup:
        state = setup.core.state
        waiting = await asyncio.to_thread(
            wait_until, "the problem", lambda: find(state.waiting, "VolumeUnavailable")
        )
        assert "the volume has not answered for 0 s (check the volume's server" in waiting.message
        assert (await setup.status()).waiting == waiting  # the coordinator answers all the while
        assert len(calls) == 1
        may_answer.set()
        await asyncio.to_thread(
            wait_until, "the number", lambda: find(state.waiting, "NoWorkersYet")
        )


def find(waiting: Waiting | None, reason: str) -> Waiting | None:
    return waiting if waiting is not None and waiting.reason == reason else None


# --- the process ----------------------------------------------------------------------------------


def test_a_container_that_is_killed_goes_on_with_what_its_process_kept(tmp_path: Path) -> None:
    seed = Ledger(lost_steps=7, restarts={"application": 2})
    later = make_desired(directory=str(tmp_path / "job"), revision=5, seed=seed)
    with coordinator_process(tmp_path) as (_, url):
        data = later.model_dump_json().encode()
        with urlopen(Request(f"{url}/v1/desired", data, BEARER, method="PUT")) as answer:
            assert answer.status == 204
        kept = tmp_path / "kept"
        wait_until("the newest spec", lambda: '"revision":5' in kept.read_text())
    with coordinator_process(tmp_path) as (_, url):
        status = status_of(url)
    assert status.revision == 5
    assert (status.ledger.lost_steps, status.ledger.restarts) == (7, seed.restarts)


async def test_refused_agents_cannot_fill_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with coordinator_process(tmp_path) as (_, url):
        async with aiohttp.ClientSession(headers=BEARER) as session:
            for _ in range(3 * MOST_RECORDS):
                async with session.ws_connect(f"{url}/v1/agent") as socket:
                    await socket.send_str("{}")
                    assert (await socket.receive(timeout=10)).type is aiohttp.WSMsgType.TEXT
    assert capfd.readouterr().err.count("refused an agent") == MOST_RECORDS


@pytest.mark.parametrize("form", FORMS)
async def test_each_line_of_its_log_names_the_job_and_its_generation(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
) -> None:
    monkeypatch.setenv(LOG_FORMAT, form)
    patient = {"heartbeat_milliseconds": 60_000, "timeout_milliseconds": 600_000}
    with coordinator_process(tmp_path, replicas=1, min_replicas=1, **patient) as (process, url):
        async with (
            aiohttp.ClientSession(headers=BEARER) as session,
            session.ws_connect(f"{url}/v1/agent") as socket,
        ):
            await socket.send_str(make_hello().shortened().model_dump_json())
            await asyncio.to_thread(
                wait_until, "a generation", lambda: status_of(url).generation, seconds=60
            )
            process.terminate()
            await asyncio.to_thread(process.wait, 60)
    subjects = subjects_of(capfd.readouterr().err, form)
    port = url.rpartition(":")[2]
    assert subjects[f"coordinator of term 1 listens on port {port}"] == "default/gpt"
    leaves = "received SIGTERM; waiting for the agents that leave as well"
    assert subjects[leaves] == "default/gpt 1.1"


def test_a_process_may_have_two_connections_of_each_of_thousands_of_agents(tmp_path: Path) -> None:
    with few_open_files() as limits, coordinator_process(tmp_path) as (process, _):
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == limits
