"""The simulated agents say what real ones say, byte by byte."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from bench.coordinator_size import make_desired, make_place
from bench.scale.__main__ import main
from bench.scale.players import Players, agents_program
from regroup.local.processes import Place
from regroup_trainer.protocol.agent_messages import Hello, agent_message
from regroup_trainer.protocol.coordinator_messages import (
    Begin,
    LeaveGeneration,
    SnapshotComplete,
    Welcome,
)
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    MemberRecord,
    SnapshotNumber,
)
from regroup_trainer.protocol.message import Message
from tests.support.waiting import until

pytestmark = pytest.mark.long
NUMBER, RANKS = GenerationNumber(1, 1), 2


class StubCoordinator:
    """It accepts every agent, and keeps what it says."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.requests: list[str] = []
        self.tokens: set[str] = set()
        self._socket: web.WebSocketResponse | None = None

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 20)
        app.router.add_get("/v1/agent", self._agent)
        app.router.add_post("/v1/{heartbeat:.*}", self._post)
        return app

    async def _agent(self, request: web.Request) -> web.StreamResponse:
        self._socket = socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.tokens.add(request.headers["Authorization"])
        async for message in socket:
            self.heard.append(message.data)
            if self.kinds()[-1] == "hello":
                await self.send(Welcome(term=1))
        return socket

    async def _post(self, request: web.Request) -> web.Response:
        self.requests.append(request.path_qs)
        self.tokens.add(request.headers["Authorization"])
        return web.Response(status=204)

    async def send(self, message: Message) -> None:
        """To the agent."""
        assert self._socket is not None
        await self._socket.send_str(message.model_dump_json())

    async def drop(self) -> None:
        """Close the connection."""
        assert self._socket is not None
        await self._socket.close()

    def kinds(self) -> list[str]:
        """Of all that was heard."""
        return [json.loads(text)["kind"] for text in self.heard]

    def hello(self) -> Hello:
        """The newest."""
        texts = [text for text in self.heard if json.loads(text)["kind"] == "hello"]
        return Hello.model_validate_json(texts[-1])

    async def await_kind(self, kind: str, count: int = 1) -> None:
        """Wait until it has come so often."""
        await until(f"{count} x {kind}", lambda: self.kinds().count(kind) >= count)


async def test_each_message_is_what_pydantic_would_write(tmp_path: Path) -> None:
    place, _ = make_place(tmp_path)
    stub = StubCoordinator()
    runner = web.AppRunner(stub.application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", place.port).start()
    settings = {"kind": "regroup", "address": f"127.0.0.1:{place.port}", "token": "secret"}
    counts = {"agents": 1, "ranks": RANKS, "step_ms": 20, "snapshot_steps": 3}
    program = await asyncio.to_thread(agents_program, print)
    with Players([program], [{**settings, **counts, "job": place.job}]) as players:
        forming = asyncio.create_task(asyncio.to_thread(players.ask, "form", 60.0))
        await stub.await_kind("hello")
        await _live(stub, record_of(stub.hello(), place))
        formed = await forming
        await until("a heartbeat", lambda: "/v1/heartbeat/" in "".join(stub.requests))
    await runner.cleanup()
    assert formed.done is not None
    for text in stub.heard:
        assert agent_message.validate_json(text).model_dump_json() == text
    assert stub.tokens == {"Bearer secret"}
    assert stub.requests[0].startswith("/v1/importing/0?member=")


async def _live(stub: StubCoordinator, record: GenerationRecord) -> None:
    """A generation, its failure, and another connection."""
    await stub.send(Begin(record=record))
    await stub.await_kind("restored", RANKS)
    await stub.await_kind("progress", 3 * RANKS)
    await stub.await_kind("held_snapshots", 2)
    await stub.send(SnapshotComplete(number=SnapshotNumber(3, NUMBER, 1)))
    await stub.send(LeaveGeneration(generation=NUMBER))
    await stub.await_kind("parked", RANKS)
    await stub.drop()
    await stub.await_kind("hello", 2)
    again = stub.hello()
    assert again.record == record
    assert again.highest == NUMBER
    assert [end.rank for end in again.ended] == [0, 1]
    assert again.restored is not None
    assert again.progress is not None
    assert again.snapshots


def record_of(hello: Hello, place: Place) -> GenerationRecord:
    """A generation of this agent alone."""
    member = MemberRecord(
        member=hello.member, index=0, pod=hello.pod, node=hello.node, first_rank=0, ranks=RANKS
    )
    return GenerationRecord(
        number=NUMBER,
        reason="the workers are there",
        restored_from="Nothing",
        members=(member,),
        store=hello.store,
        desired=make_desired(place, 1),
    )


def test_a_quick_run_has_every_figure_of_ours(tmp_path: Path) -> None:
    options = ["--quick", "--subject", "regroup", "--output", str(tmp_path)]
    done = CliRunner().invoke(main, options)
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "scale.json").read_text())["rows"]
    found = {row["metric"]: row["median"] for row in rows}
    assert found["formed"] == found["recovered"] == found["resynced"] == 1.0
    assert 20 < found["rss_mb"] <= found["rss_peak_mb"] < 200
    assert 0 < found["recovery_seconds"] < 60
    assert found["needless_generations"] == 0
