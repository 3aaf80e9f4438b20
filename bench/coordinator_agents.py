"""Agents of a job without ranks, in one process: they send to a real coordinator, over real
connections, what agents and ranks send. For benchmarks of the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
from pydantic import BaseModel

from regroup_trainer.protocol.agent_messages import (
    HeldSnapshot,
    HeldSnapshots,
    RankEvent,
    Reports,
    ShortHello,
)
from regroup_trainer.protocol.coordinator_messages import (
    BeginDifference,
    LeaveGeneration,
    SentMessage,
    sent_message,
)
from regroup_trainer.protocol.desired import Desired, Lost
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    RecordPiece,
    RecordWanted,
    SnapshotNumber,
)
from regroup_trainer.protocol.message import PROTOCOL_VERSION
from regroup_trainer.protocol.rank_messages import Parked, Progress, Restored, Retained
from regroup_trainer.protocol.record_transfer import RecordIntake, apply_difference

COPIES = 2
"""Agents that hold each shard of a memory snapshot."""
AT_ONCE = 64
"""Connections that are made at the same time."""


@dataclass
class AgentGroup:
    """The agents of one job, each with `ranks` ranks."""

    url: str
    token: str
    desired: Desired
    ranks: int
    session: aiohttp.ClientSession
    agents: dict[int, SimulatedAgent] = field(default_factory=dict)
    """By index."""
    step: int = 0
    records: dict[GenerationNumber, GenerationRecord] = field(default_factory=dict)
    """Of all agents: the first that has a record makes it for all."""
    intakes: dict[GenerationNumber, RecordIntake] = field(default_factory=dict)
    ready: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(self) -> None:
        """Connect all, and return once each trains in one generation."""
        places = asyncio.Semaphore(AT_ONCE)

        async def connect(index: int) -> None:
            async with places:
                await self.add(index, 1)

        await asyncio.gather(*map(connect, range(self.desired.workers)))
        await self.join(GenerationNumber(0, 0))

    async def add(self, index: int, incarnation: int) -> None:
        """Connect an agent, in place of a former one of this index."""
        agent = SimulatedAgent(self, index, incarnation)
        await agent.connect()
        self.agents[index] = agent

    async def join(self, former: GenerationNumber) -> None:
        """Return once all train in a generation after `former`, and have reported a step."""
        async with self.ready:
            await self.ready.wait_for(
                lambda: all(agent.number > former for agent in self.agents.values())
            )
        await self.round()
        await self.until_idle()

    def take_piece(self, piece: RecordPiece) -> None:
        """Of a record that agents fetch."""
        intake = self.intakes.setdefault(piece.number, RecordIntake(piece.number))
        if piece.number not in self.records and piece.piece == intake.wanted.piece:
            record = intake.add(piece)
            self.records |= {record.number: record} if record else {}

    def record_of(self, begin: BeginDifference) -> GenerationRecord:
        """By the difference to its parent."""
        if begin.number not in self.records:
            assert begin.parent is not None
            assert begin.difference is not None
            parent = self.records[begin.parent]
            self.records[begin.number] = apply_difference(parent, begin.number, begin.difference)
        return self.records[begin.number]

    async def round(self) -> None:
        """A report of each agent, and a heartbeat, as once a second."""
        self.step += 1
        await self._all(lambda agent: agent.report(self.step))

    async def snapshot(self) -> None:
        """Every rank has copied its shard, and agents hold each of them twice."""
        await self._all(lambda agent: agent.hold(self.step, len(self.agents) * self.ranks))
        await self.until_idle()

    async def until_idle(self) -> None:
        """Return once the coordinator has taken everything that was sent before."""
        await self._all(lambda agent: agent.ping())

    async def replace(self, index: int) -> None:
        """The operator reports this agent's pod as lost, and its replacement connects."""
        lost = self.agents.pop(index)
        former = lost.number
        message = Lost(members=(lost.member,), reason="the pod was deleted")
        async with self.session.post(f"{self.url}/v1/lost", data=message.model_dump_json()):
            await lost.close()
        await self.add(index, 2)
        await self.join(former)

    async def close(self) -> None:
        """Close all connections."""
        await self._all(lambda agent: agent.close())

    async def _all(self, work: Callable[[SimulatedAgent], Awaitable[None]]) -> None:
        await asyncio.gather(*map(work, self.agents.values()))


class SimulatedAgent:
    """One agent, and what its ranks report."""

    def __init__(self, group: AgentGroup, index: int, incarnation: int) -> None:
        self._group = group
        self._index = index
        self._incarnation = incarnation
        self.member = str(uuid.uuid4())
        """As the UID of a pod."""
        self.number = GenerationNumber(0, 0)
        """Of the generation that it is in."""
        self._own_ranks = range(0)
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._pong = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Say hello, and follow what the coordinator says from now on."""
        url = f"{self._group.url}/v1/agent"
        self._socket = await self._group.session.ws_connect(url, autoping=False, max_msg_size=0)
        await self._send(self._hello())
        self._listening = asyncio.create_task(self._listen(self._socket))

    async def close(self) -> None:
        """Its pod is gone."""
        assert self._socket is not None
        assert self._listening is not None
        await self._socket.close()
        await self._listening

    async def report(self, step: int) -> None:
        """What the ranks report of a step, and a heartbeat."""
        await self._report_all(lambda rank: self._progress(rank, step))
        while not await self._heartbeat():
            pass

    async def hold(self, step: int, shards: int) -> None:
        """Report the shards of its own ranks, and of its neighbour's."""
        number = SnapshotNumber(step, self.number, shards)
        first, ranks = self._own_ranks.start, self._group.ranks
        held = tuple((first + n) % shards for n in range(COPIES * ranks))
        await self._send(HeldSnapshots(snapshots=(HeldSnapshot(number=number, shards=held),)))

    async def _heartbeat(self) -> bool:
        """Whether it was answered. A slow machine has idle connections closed."""
        url = f"{self._group.url}/v1/heartbeat/{self.member}?delay=0.001"
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with self._group.session.post(url, raise_for_status=True):
                return True
        return False

    async def ping(self) -> None:
        """Return once the coordinator has read all that was sent."""
        assert self._socket is not None
        self._pong.clear()
        await self._socket.ping()
        await self._pong.wait()

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.PONG:
                self._pong.set()
            elif message.type is aiohttp.WSMsgType.TEXT:
                await self._on_message(sent_message.validate_json(message.data))

    async def _on_message(self, message: SentMessage) -> None:
        match message:
            case BeginDifference(parent=parent) if parent is not None and parent == self.number:
                await self._begin(self._group.record_of(message))
            case BeginDifference(number=number):
                await self._send(RecordWanted(number=number))
            case RecordPiece(number=number, piece=piece, pieces=pieces):
                self._group.take_piece(message)
                if piece + 1 < pieces:
                    await self._send(RecordWanted(number=number, piece=piece + 1))
                else:
                    await self._begin(self._group.records[number])
            case LeaveGeneration(generation=number) if number == self.number:
                await self._report_all(self._parked)
            case _:
                pass

    async def _begin(self, record: GenerationRecord) -> None:
        place = record.place_of(self.member)
        self._own_ranks = place.own_ranks if place else range(0)
        self.number = record.number
        await self._report_all(lambda rank: self._restored(rank, record))
        async with self._group.ready:
            self._group.ready.notify_all()

    async def _report_all(self, report: Callable[[int], RankEvent]) -> None:
        if self._own_ranks:
            await self._send(Reports(reports=tuple(map(report, self._own_ranks))))

    def _hello(self) -> ShortHello:
        n, address = self._index, f"10.{self._index // 250}.{self._index % 250}.17"
        return ShortHello(
            protocol=PROTOCOL_VERSION,
            member=self.member,
            index=n,
            pod=f"{self._group.desired.job}-w{n}-{self._incarnation}",
            node=f"gpu-node-{n:05}.compute.internal",
            ranks=self._group.ranks,
            store=f"{address}:29400",
            endpoint=f"{address}:8472",
        )

    def _restored(self, rank: int, record: GenerationRecord) -> Restored:
        source = record.restored_from
        return Restored(
            generation=record.number, rank=rank, step=self._group.step, restored_from=source
        )

    def _progress(self, rank: int, step: int) -> Progress:
        seconds = dict.fromkeys(("step", "wait", "data", "checkpoint"), step * 0.123456789)
        return Progress(
            generation=self.number,
            rank=rank,
            step=step,
            time=time.time(),
            seconds=seconds,
            epoch=0.123456789,
            tokens=step * 65536,
            compute_seconds=0.412345678,
            loss=2.123456789 if rank == 0 else None,
            tokens_per_second=123456.789 if rank == 0 else 0.0,
        )

    def _parked(self, rank: int) -> Parked:
        shards = len(self._group.agents) * self._group.ranks
        kept = Retained(step=self._group.step, shard=rank, shards=shards)
        return Parked(generation=self.number, rank=rank, retained=kept)

    async def _send(self, message: BaseModel) -> None:
        assert self._socket is not None
        await self._socket.send_str(message.model_dump_json())
