"""Real agents and a real coordinator with simulated ranks: which agent holds which snapshot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import xxhash

from regroup_trainer.agent import agent as agents
from regroup_trainer.agent.agent import Agent
from regroup_trainer.agent.template_protocol import (
    ForkRank,
    KillRanks,
    Order,
    RankEnded,
    Ready,
    StartStore,
    StoreStarted,
    TemplateNews,
)
from regroup_trainer.coordinator.core import Coordinator
from regroup_trainer.coordinator.serving.server import Server
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.generation import Assignment, GenerationRecord, SnapshotNumber
from regroup_trainer.protocol.rank_messages import (
    Progress,
    Report,
    Restored,
    SnapshotFile,
    SnapshotTaken,
)
from regroup_trainer.snapshots.places import FILES, TENSORS, CompletePage, held_file, slot_file
from tests.support.coordinator_simulation import current_record, make_desired, make_sharded_config
from tests.support.waiting import until

TOKEN = "t0ken"
RANKS = 2
"""Ranks of each worker."""


class PretendedTemplate:
    """Starts ranks that restore their state, make ten steps and take a snapshot."""

    def __init__(
        self,
        on_news: Callable[[TemplateNews], None],
        _on_end: Callable[[], None],
        _script: str = "",
    ) -> None:
        self._on_news = on_news
        self._ranks: list[asyncio.Task[None]] = []
        self.pid = None
        self.assignments: dict[int, Assignment] = {}

    async def start(self, _entry: str, _directory: Path) -> None:
        asyncio.get_running_loop().call_soon(self._on_news, Ready())

    def order(self, order: Order) -> None:
        match order:
            case StartStore():
                self._on_news(StoreStarted(port=1))
            case KillRanks():
                self.kill()
            case ForkRank(assignment=assignment):
                self.assignments[assignment.local_rank] = assignment
                self._ranks.append(asyncio.create_task(live(assignment)))

    def end_rank(self, local_rank: int) -> None:
        assignment = self.assignments[local_rank]
        self._on_news(
            RankEnded(
                generation=assignment.record.number, rank=assignment.rank, exit_code=137, signal=9
            )
        )

    def kill(self) -> None:
        for rank in self._ranks:
            rank.cancel()
        self._ranks.clear()


async def live(assignment: Assignment) -> None:
    """Run a simulated rank from start to end."""
    record, rank = assignment.record, assignment.rank
    begun = record.snapshot.number.step if record.snapshot else 0
    step = begun + 10
    number = SnapshotNumber(step, record.number, record.world_size)
    reports: list[Report] = [
        Restored(generation=record.number, rank=rank, step=begun),
        Progress(generation=record.number, rank=rank, step=step, time=time.time()),
        write_shard(assignment, number),
    ]
    _, writer = await asyncio.open_unix_connection(assignment.channel)
    with contextlib.closing(writer):
        writer.writelines(report.model_dump_json().encode() + b"\n" for report in reports)
        await asyncio.Event().wait()


def write_shard(assignment: Assignment, number: SnapshotNumber) -> SnapshotTaken:
    files = {}
    for name in FILES:
        content = f"{name} of rank {assignment.rank} at step {number.step}".encode()
        slot_file(
            Path(assignment.snapshots), assignment.local_rank, assignment.free_slot, name
        ).write_bytes(content)
        files[name] = SnapshotFile(len(content), xxhash.xxh3_64(content).hexdigest())
    return SnapshotTaken(
        generation=number.generation,
        rank=assignment.rank,
        number=number,
        shard=assignment.rank,
        slot=assignment.free_slot,
        files=files,
    )


class Site:
    """A coordinator, and a worker on each of these nodes, in this process."""

    def __init__(self, folder: Path, core: Coordinator, nodes: Sequence[str]) -> None:
        self.folder = folder
        self.core = core
        self.nodes = nodes
        self.templates: list[PretendedTemplate] = []

    @property
    def record(self) -> GenerationRecord:
        return current_record(self.core)

    def make_template(self, *arguments: Any) -> PretendedTemplate:
        self.templates.append(PretendedTemplate(*arguments))
        return self.templates[-1]

    def make_agent(self, index: int, url: str) -> Agent:
        environment = AgentEnvironment(
            coordinator_url=url,
            namespace="d",
            job="gpt",
            member=f"uid-{index}",
            index=index,
            pod=f"w{index}",
            node=self.nodes[index],
            address="127.0.0.1",
            ranks=RANKS,
            metrics_port=0,
            termination_log=str(self.folder / "termination"),
        )
        return Agent(environment, TOKEN)

    def folder_of(self, template: PretendedTemplate) -> Path:
        return Path(template.assignments[0].snapshots)

    async def until(self, condition: Callable[[], bool]) -> None:
        await until("the agents and their coordinator", condition, 100.0)

    async def until_complete(self, step: int) -> None:
        """Wait until all workers know that the snapshot of this step is complete."""
        await self.until(
            lambda: (
                len(self.templates) == len(self.nodes)
                and all(t.assignments for t in self.templates)
            )
        )
        await self.until(
            lambda: all(CompletePage(self.folder_of(t)).step == step for t in self.templates)
        )


@pytest.fixture
async def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Site]:
    """Two workers on two nodes, unless a test names others."""
    nodes = getattr(request, "param", ("n0", "n1"))
    now = time.monotonic()
    desired = make_desired(
        replicas=len(nodes),
        min_replicas=1,
        train=make_sharded_config(100),
        directory=str(tmp_path),
        timeout_milliseconds=20_000,
    )
    core = Coordinator(1, "elsewhere", desired, now, time.time() - now)
    site = Site(tmp_path, core, nodes)
    monkeypatch.setattr(agents, "TemplateProcess", site.make_template)
    server = Server(core, TOKEN)
    async with server.serve("127.0.0.1", 0) as port:
        ticking = asyncio.create_task(server.run())
        url = f"http://127.0.0.1:{port}"
        running = [asyncio.create_task(site.make_agent(n, url).run()) for n in range(len(nodes))]
        yield site
        for task in (*running, ticking):
            task.cancel()
        await asyncio.gather(*running, ticking, return_exceptions=True)


async def test_after_a_dead_rank_the_next_generation_resumes_from_memory(site: Site) -> None:
    await site.until_complete(10)
    first = site.record.number
    site.templates[0].end_rank(1)
    await site.until(lambda: site.record.number > first)
    assert site.record.restored_from == "Snapshot"
    source = site.record.snapshot
    assert source is not None
    assert source.number == SnapshotNumber(10, first, 2 * RANKS)
    await site.until_complete(20)
    (recovery,) = site.core.state.recoveries.records()
    assert (recovery.restored_from, recovery.resumed_from_step, recovery.lost_steps) == (
        "Snapshot",
        10,
        0,
    )


async def test_each_worker_holds_its_own_shards_and_its_neighbours(site: Site) -> None:
    await site.until_complete(10)
    number = SnapshotNumber(10, site.record.number, 2 * RANKS)
    for template in site.templates:
        for shard in range(2 * RANKS):
            content = held_file(site.folder_of(template), number, shard, TENSORS).read_bytes()
            assert content == f"tensors of rank {shard} at step 10".encode()
            described = json.loads(
                held_file(site.folder_of(template), number, shard, "json").read_bytes()
            )
            assert described[TENSORS][0] == len(content)


@pytest.mark.parametrize("site", [("a", "a", "b")], indirect=True)
async def test_what_workers_of_one_node_hold_is_held_on_another_node_too(site: Site) -> None:
    await site.until_complete(10)
    number = SnapshotNumber(10, site.record.number, len(site.nodes) * RANKS)
    held: dict[str, set[int]] = {"a": set(), "b": set()}
    for template in site.templates:
        place = template.assignments[0].place
        held[place.node] |= {
            n for n in range(number.shards) if is_held(site.folder_of(template), number, n)
        }
    assert held["a"] == held["b"] == set(range(number.shards))


def is_held(folder: Path, number: SnapshotNumber, shard: int) -> bool:
    return held_file(folder, number, shard, TENSORS).exists()


async def test_the_next_snapshot_is_not_written_over_the_one_that_is_read(site: Site) -> None:
    await site.until_complete(10)
    used = {
        rank: assignment.free_slot for rank, assignment in site.templates[0].assignments.items()
    }
    site.templates[0].end_rank(1)
    await site.until_complete(20)
    now = {rank: assignment.free_slot for rank, assignment in site.templates[0].assignments.items()}
    assert all(now[rank] != used[rank] for rank in used)
