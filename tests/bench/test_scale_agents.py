"""The simulated agents send what real ones send, byte by byte."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from bench.scale.__main__ import main
from bench.scale.coordinated import make_desired, make_place
from bench.scale.players import Players, agents_program
from regroup.local.processes import Place
from regroup_trainer.coordinator.serving.known_records import KnownRecords
from regroup_trainer.protocol.agent_messages import ShortHello, agent_message
from regroup_trainer.protocol.coordinator_messages import (
    LeaveGeneration,
    SnapshotComplete,
    Welcome,
)
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    MemberRecord,
    RecordPiece,
    RecordWanted,
    SnapshotNumber,
    SnapshotSource,
)
from regroup_trainer.protocol.message import Message
from regroup_trainer.protocol.record_transfer import RecordIntake
from regroup_trainer.system.heartbeat_line import Beat, HeartbeatReaders, Kind
from tests.support.waiting import until

pytestmark = pytest.mark.long
NUMBER, NEXT, RANKS = GenerationNumber(1, 1), GenerationNumber(1, 2), 2
SNAPSHOT = SnapshotNumber(3, NUMBER, RANKS)


class StubCoordinator:
    """It accepts every agent, and keeps what it says."""

    def __init__(self) -> None:
        self.records = KnownRecords()
        self.received: list[str] = []
        self.requests: list[str] = []
        self.frames: list[Beat] = []
        self._readers = HeartbeatReaders()
        self.tokens: set[str] = set()
        self._socket: web.WebSocketResponse | None = None

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1 << 20)
        app.router.add_get("/v1/agent", self._agent)
        app.router.add_get("/v1/heartbeats/{index}", self._heartbeats)
        return app

    async def _agent(self, request: web.Request) -> web.StreamResponse:
        self._socket = socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.tokens.add(request.headers["Authorization"])
        async for message in socket:
            self.received.append(message.data)
            parsed = agent_message.validate_json(message.data)
            if isinstance(parsed, ShortHello):
                await self.send(Welcome(term=1))
            elif isinstance(parsed, RecordWanted):
                piece = self.records.piece(parsed)
                assert piece is not None
                await socket.send_str(piece.decode())
        return socket

    async def _heartbeats(self, request: web.Request) -> web.StreamResponse:
        """Takes frames, as long as aiohttp does not look."""
        self.requests.append(request.path_qs)
        self.tokens.add(request.headers["Authorization"])
        assert request.transport is not None
        over = asyncio.Event()
        protocol = self._readers.accept(request.transport, self._note_frame, over.set)
        request.transport.set_protocol(protocol)
        await over.wait()
        return web.Response()

    def _note_frame(self, frame: Beat) -> bool:
        self.frames.append(frame)
        return True

    async def send(self, message: Message) -> None:
        """To the agent."""
        assert self._socket is not None
        await self._socket.send_str(message.model_dump_json())

    async def drop(self) -> None:
        """Close the connection."""
        assert self._socket is not None
        await self._socket.close()

    def kinds(self) -> list[str]:
        """Of all messages that were received, and of the reports in them."""
        documents = [json.loads(text) for text in self.received]
        parts = [[one, *one.get("reports", ())] for one in documents]
        return [part["kind"] for group in parts for part in group]

    def newest(self, kind: str) -> str:
        """The newest message of this kind."""
        return [text for text in self.received if json.loads(text)["kind"] == kind][-1]

    def hello(self) -> ShortHello:
        """The newest."""
        return ShortHello.model_validate_json(self.newest("hello"))

    async def await_kind(self, kind: str, count: int = 1) -> None:
        """Wait until it has come so often."""
        await until(f"{count} x {kind}", lambda: self.kinds().count(kind) >= count)


async def test_each_message_is_what_pydantic_would_write(tmp_path: Path) -> None:
    place, _ = make_place(tmp_path)
    stub = StubCoordinator()
    runner = web.AppRunner(stub.application(), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", place.port).start()
    settings = {"kind": "regroup", "address": f"127.0.0.1:{place.port}", "token": "secret"}
    counts = {"agents": 1, "ranks": RANKS, "step_ms": 20, "snapshot_steps": 3}
    program = await asyncio.to_thread(agents_program, print)
    with Players([program], [{**settings, **counts, "job": place.job}]) as players:
        forming = asyncio.create_task(asyncio.to_thread(players.ask, "form", 60.0))
        await stub.await_kind("hello")
        await _live(stub, record_of(stub.hello(), place))
        await _begin_by_difference(stub, record_of(stub.hello(), place))
        formed = await forming
        await until("a heartbeat", lambda: Kind.ALIVE in {frame.kind for frame in stub.frames})
    await runner.cleanup()
    assert formed.done is not None
    for text in stub.received:
        assert agent_message.validate_json(text).model_dump_json() == text
    assert stub.tokens == {"Bearer secret"}
    assert len(stub.requests) == 1
    assert stub.requests[0].startswith("/v1/heartbeats/0?member=")
    assert stub.frames[0].kind is Kind.IMPORTING
    assert stub.frames[0].wants_answer


async def _live(stub: StubCoordinator, record: GenerationRecord) -> None:
    """A generation, its failure, and another connection."""
    await stub.send(stub.records.begin(record))
    await stub.await_kind("record_wanted")  # it knows no parent
    await stub.await_kind("restored", RANKS)
    await stub.await_kind("progress", 3 * RANKS)
    await stub.await_kind("held_snapshots", 2)
    await stub.send(SnapshotComplete(number=SNAPSHOT))
    await stub.send(LeaveGeneration(generation=NUMBER))
    await stub.await_kind("parked", RANKS)
    assert shards_of(stub) == [{"shards": RANKS}, {"shard": 1, "shards": RANKS}]
    await stub.drop()
    await stub.await_kind("hello", 2)
    again = stub.hello()
    assert again.highest == again.generation == NUMBER
    assert [end.rank for end in again.ended] == [0, 1]
    assert again.restored is not None
    assert again.progress is not None
    (held,) = again.snapshots
    assert (held.number.shards, held.shards) == (RANKS, (0, 1))


def shards_of(stub: StubCoordinator) -> list[dict[str, int]]:
    """What the newest message with parked ranks says of the part of the state that each keeps."""
    reports = json.loads(stub.newest("reports"))["reports"]
    kept = [one["retained"] for one in reports if one["kind"] == "parked"]
    return [{name: of for name, of in one.items() if name != "step"} for one in kept]


async def _begin_by_difference(stub: StubCoordinator, former: GenerationRecord) -> None:
    """The next generation, whose record the agent makes and shows to a coordinator that asks."""
    places = (former.members[0].endpoint, "elsewhere:8472", former.members[0].endpoint)
    snapshot = SnapshotSource(number=SNAPSHOT._replace(shards=3), places=places)
    changes = {"number": NEXT, "reason": "a <&> failed", "failures": 1, "snapshot": snapshot}
    record = former.model_copy(update=changes)
    begin = stub.records.begin(record)
    assert begin.difference is not None
    await stub.send(begin)
    await stub.await_kind("restored", 2 * RANKS)
    assert stub.kinds().count("record_wanted") == 1
    intake = RecordIntake(NEXT, begin.checksum)
    await stub.send(intake.wanted)
    await stub.await_kind("record_piece")
    piece = RecordPiece.model_validate_json(stub.newest("record_piece"))
    assert intake.add(piece) == record


def record_of(hello: ShortHello, place: Place) -> GenerationRecord:
    """A generation of this agent alone."""
    member = MemberRecord(
        member=hello.member,
        index=0,
        pod=hello.pod,
        node=hello.node,
        first_rank=0,
        ranks=RANKS,
        endpoint=hello.endpoint,
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
