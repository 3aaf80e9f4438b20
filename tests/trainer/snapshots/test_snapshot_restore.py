"""Real ranks copy their state into an agent's memory, die, and their successors go on from
there.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import xxhash
from aiohttp import web

from regroup_trainer.agent.replication import SnapshotServer
from regroup_trainer.agent.snapshot_store import HeldShard, SnapshotStore
from regroup_trainer.checkpoint import history, lineage
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.protocol.environment import AgentEnvironment
from regroup_trainer.protocol.generation import (
    Decision,
    GenerationNumber,
    GenerationRecord,
    SnapshotNumber,
    SnapshotSource,
)
from regroup_trainer.protocol.rank_messages import SnapshotFile
from regroup_trainer.snapshots.places import (
    FILES,
    REST,
    TENSORS,
    held_file,
    write_description,
)
from tests.support import hostile_pickle
from tests.support.ranks import (
    FIRST,
    RankOutcome,
    Template,
    generation,
    succeeded,
    train_config,
)

TOKEN = "t0ken"
EVERY, DEATH, STEPS = 3, 5, 7
"""A snapshot after step 3, a rank dies after step 5, and 7 steps are to be done."""


class Endpoints:
    """Agents' HTTP endpoints, in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._runners: list[web.AppRunner] = []
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def serve(self, store: SnapshotStore) -> str:
        return asyncio.run_coroutine_threadsafe(self._serve(store), self._loop).result(60)

    async def _serve(self, store: SnapshotStore) -> str:
        application = web.Application()
        SnapshotServer(store, TOKEN, lambda _: True, lambda: None).add_to(application.router)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"127.0.0.1:{runner.addresses[0][1]}"

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    async def _close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@dataclass
class Job:
    """Members of one rank each, and what their agents hold."""

    template: Template
    folder: Path
    endpoints: Endpoints
    stores: list[SnapshotStore]
    strategy: dict[str, Any]

    @property
    def directory(self) -> Path:
        return self.folder / "volume"

    def lose_a_rank(
        self, entry: str = "tests.support.rank_faults:die_with_snapshot", **policy: Any
    ) -> SnapshotNumber:
        """The first generation trains until a rank dies; returns its snapshot."""
        policy = {"interval_steps": 1000, "memory_snapshot_steps": EVERY, **policy}
        train = train_config(training={"steps": STEPS}, parallelism=self.strategy)
        record = generation(self.directory, len(self.stores), train, checkpoint=policy)
        outcomes = self.run(record, entry, {"rank": 1, "step": DEATH})
        assert outcomes[1].exit_code == 128 + 9, outcomes[1].stderr
        for rank, outcome in enumerate(outcomes):
            for report in outcome.snapshots:
                self.stores[rank].take(report, 0)
        (number,) = {report.number for outcome in outcomes for report in outcome.snapshots}
        return number

    def go_on(
        self, number: SnapshotNumber, stores: list[SnapshotStore] | None = None, n: int = 2
    ) -> list[RankOutcome]:
        """The next generation, of the members with these stores, does the rest from memory."""
        self.stores = self.stores if stores is None else stores
        train = train_config(training={"steps": STEPS}, parallelism=self.strategy)
        record = generation(self.directory, len(self.stores), train, number=GenerationNumber(1, n))
        source = SnapshotSource(number=number, places=self.places(number))
        environment = {AgentEnvironment.variable("token_file"): str(self.folder / "token")}
        record = record.model_copy(update={"restored_from": "Snapshot", "snapshot": source})
        return self.run(record, "tests.support.rank_faults:in_environment", environment)

    def run(
        self,
        record: GenerationRecord,
        entry: str = "tests.support.ranks:train",
        options: dict[str, Any] | None = None,
        decisions: dict[int, Decision] | None = None,
    ) -> list[RankOutcome]:
        shared = [(store.folder, store.begin(record)[0]) for store in self.stores]
        return self.template.run(
            record,
            entry=entry,
            options=options,
            decisions=decisions,
            snapshots=shared[: record.world_size],
        )

    def places(self, number: SnapshotNumber) -> tuple[str, ...]:
        at = {
            shard: self.endpoints.serve(store)
            for store in self.stores
            for kept in store.held()
            for shard in kept.shards
            if kept.number == number
        }
        return tuple(at[shard] for shard in range(number.shards))


@pytest.fixture
def make_job(template: Template, tmp_path: Path) -> Iterator[Any]:
    endpoints = Endpoints()
    (tmp_path / "token").write_text(TOKEN)

    def make(world_size: int, **strategy: Any) -> Job:
        stores = [SnapshotStore(tmp_path / f"m{rank}", ranks=1) for rank in range(world_size)]
        return Job(template, tmp_path, endpoints, stores, strategy)

    yield make
    endpoints.close()


@pytest.fixture(scope="module")
def undisturbed(template: Template, tmp_path_factory: pytest.TempPathFactory) -> list[float | None]:
    train = train_config(training={"steps": STEPS})
    outcomes = template.run(generation(tmp_path_factory.mktemp("undisturbed"), 2, train))
    return outcomes[0].losses


@pytest.mark.parametrize(
    ("strategy", "world_size", "shards"),
    [
        pytest.param({"strategy": "ddp"}, 2, 1, id="ddp keeps whole copies"),
        pytest.param({"strategy": "fsdp"}, 2, 2, id="fsdp"),
        pytest.param({"strategy": "zero"}, 2, 2, id="zero"),
    ],
)
def test_a_generation_resumes_from_memory_as_if_nothing_had_happened(
    make_job: Any,
    undisturbed: list[float | None],
    strategy: dict[str, Any],
    world_size: int,
    shards: int,
) -> None:
    job = make_job(world_size, **strategy)
    number = job.lose_a_rank()
    assert (number.step, number.shards) == (EVERY, shards)
    outcomes = job.go_on(number)
    assert outcomes[0].exit_code == 0, outcomes[0].stderr
    restored = outcomes[0].restored
    assert (restored.restored_from, restored.step, restored.fallback_reason) == (
        "Snapshot",
        EVERY,
        "",
    )
    assert outcomes[0].losses == pytest.approx(undisturbed[EVERY:], rel=1e-5)
    records = lineage.read(Layout(job.directory))
    assert records[GenerationNumber(1, 2)].resumed_from_step == EVERY


def test_a_state_that_the_volume_refuses_before_a_planned_end_is_kept_by_agents_too(
    make_job: Any,
) -> None:
    """In case its ranks are killed before the volume takes it."""
    job = make_job(2, strategy="fsdp")
    policy = {"interval_steps": 1000, "memory_snapshot_steps": 1000}
    train = train_config(training={"steps": STEPS}, parallelism=job.strategy)
    record = generation(job.directory, 2, train, checkpoint=policy)
    outcomes = job.run(
        record,
        "tests.support.rank_faults:limit_file_size",
        {"rank": 1, "step": EVERY, "bytes": 5000, "times": 2},
        decisions={EVERY: Decision.LEAVE},
    )
    (number,) = {report.number for outcome in outcomes for report in outcome.snapshots}
    for rank, outcome in enumerate(succeeded(outcomes)):
        (taken,) = outcome.snapshots
        job.stores[rank].take(taken, 0)
    shutil.rmtree(Layout(job.directory).checkpoints)
    restored = succeeded(job.go_on(number))[0].restored
    assert (restored.restored_from, restored.step) == ("Snapshot", EVERY)


def test_fewer_ranks_fetch_the_shards_of_a_lost_member_from_its_neighbour(
    make_job: Any, undisturbed: list[float | None]
) -> None:
    job = make_job(3, strategy="fsdp")
    number = job.lose_a_rank()
    copy_to_neighbour(job.stores[2], job.stores[0], number, shard=2)
    outcomes = job.go_on(number, stores=job.stores[:2])
    assert outcomes[0].exit_code == 0, outcomes[0].stderr
    assert outcomes[0].restored.restored_from == "Snapshot"
    assert outcomes[0].losses == pytest.approx(undisturbed[EVERY:], rel=1e-5)


def copy_to_neighbour(
    source: SnapshotStore, target: SnapshotStore, number: SnapshotNumber, shard: int
) -> None:
    held = source.get(number, shard)
    assert held is not None
    slot = target.acquire()
    for name in FILES:
        slot.path(name).write_bytes(held.slot.path(name).read_bytes()[: held.files[name].size])
    target.add(number, shard, HeldShard(slot, held.files))


def test_a_damaged_shard_leaves_the_state_to_the_checkpoint_and_says_why(make_job: Any) -> None:
    job = make_job(2, strategy="fsdp")
    number = job.lose_a_rank(interval_steps=2)
    path = held_file(job.stores[1].folder, number, 1, TENSORS)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    shutil.rmtree(
        Layout(job.directory).published(4), ignore_errors=True
    )  # which may have ended before the rank did
    outcomes = job.go_on(number)
    restored = outcomes[0].restored
    assert (restored.restored_from, restored.step) == ("Checkpoint", 2)
    assert "shard 1 (tensors) is not " in restored.fallback_reason


def replace_rest(job: Job, number: SnapshotNumber, content: Callable[[bytes], bytes]) -> None:
    """Let shard 0 hold something else than its tensors' description, with the checksum of that."""
    store = job.stores[0]
    held, path = store.get(number, 0), held_file(store.folder, number, 0, REST)
    assert held
    former = path.read_bytes()
    path.write_bytes(content(former))
    assert path.read_bytes() != former
    checksum = xxhash.xxh3_64(path.read_bytes()).hexdigest()
    written = SnapshotFile(size=path.stat().st_size, checksum=checksum)
    write_description(store.folder, number, 0, {**held.files, REST: written})
    shutil.rmtree(Layout(job.directory).published(4), ignore_errors=True)


def test_a_snapshot_that_this_release_cannot_read_leaves_the_state_to_the_checkpoint(
    make_job: Any,
) -> None:
    job = make_job(2, strategy="fsdp")
    number = job.lose_a_rank(interval_steps=2)
    replace_rest(job, number, lambda rest: rest.replace(b"snapshot_writer", b"snapshot_former"))
    restored = job.go_on(number)[0].restored
    assert (restored.restored_from, restored.step) == ("Checkpoint", 2)
    assert "shard 0 is of another release (ForbiddenError" in restored.fallback_reason


def test_a_rank_runs_nothing_that_a_peers_snapshot_names(make_job: Any, tmp_path: Path) -> None:
    job = make_job(2, strategy="fsdp")
    number = job.lose_a_rank(interval_steps=2)
    replace_rest(job, number, lambda _: hostile_pickle.pickled(tmp_path / "ran"))
    restored = job.go_on(number)[0].restored
    assert (restored.restored_from, restored.step) == ("Checkpoint", 2)
    assert "it names posix.mkdir" in restored.fallback_reason
    assert not (tmp_path / "ran").exists()


def test_a_snapshot_of_an_abandoned_line_is_never_used(make_job: Any) -> None:
    job = make_job(2, strategy="fsdp")
    number = job.lose_a_rank(interval_steps=2)
    layout = Layout(job.directory)
    first = lineage.read(layout)[FIRST]
    resumed = {"generation": GenerationNumber(1, 2), "parent": FIRST, "resumed_from_step": 2}
    lineage.begin(layout, first.model_copy(update=resumed))
    outcomes = job.go_on(number, n=3)
    assert (outcomes[0].restored.restored_from, outcomes[0].restored.step) == ("Checkpoint", 2)
    assert "an abandoned line" in outcomes[0].restored.fallback_reason


def test_a_newer_checkpoint_is_better_than_memory(make_job: Any) -> None:
    job = make_job(2, strategy="fsdp")
    number = job.lose_a_rank(interval_steps=4)
    outcomes = job.go_on(number)
    assert (outcomes[0].restored.restored_from, outcomes[0].restored.step) == ("Checkpoint", 4)
    assert outcomes[0].restored.fallback_reason == "the checkpoint of step 4 is newer"


def test_snapshots_can_be_switched_off(make_job: Any) -> None:
    job = make_job(1, strategy="ddp")
    train = train_config(training={"steps": 4})
    outcomes = job.run(generation(job.directory, 1, train, checkpoint={"memory_snapshot_steps": 0}))
    assert outcomes[0].snapshots == []


def test_without_memory_for_snapshots_training_continues_and_says_what_to_do(make_job: Any) -> None:
    job = make_job(1, strategy="ddp")
    train = train_config(training={"steps": 4})
    record = generation(job.directory, 1, train, checkpoint={"memory_snapshot_steps": 2})
    outcomes = job.run(record, "tests.support.rank_faults:without_memory")
    assert outcomes[0].exit_code == 0, outcomes[0].stderr
    assert outcomes[0].snapshots == []
    (off,) = outcomes[0].snapshots_off
    assert (
        "1000 B are available (raise the memory limit, or set checkpoint.memorySnapshotSteps: 0)"
        in off.why
    )


def test_the_steps_up_to_a_save_are_on_the_volume_before_it_is_reported(make_job: Any) -> None:
    job = make_job(1, strategy="ddp")
    policy = {"interval_steps": 2, "memory_snapshot_steps": 2}
    record = generation(job.directory, 1, train_config(training={"steps": 6}), checkpoint=policy)
    outcomes = job.run(record, "tests.support.rank_faults:note_flushes")
    assert outcomes[0].exit_code == 0, outcomes[0].stderr
    events = [
        line.split()[1] for line in outcomes[0].stderr.splitlines() if line.startswith("event: ")
    ]
    assert events == 3 * ["flushed", "checkpoint_saved"]


def test_steps_that_the_volume_did_not_take_come_with_the_snapshot(make_job: Any) -> None:
    job = make_job(2, strategy="fsdp")
    number = job.lose_a_rank(entry="tests.support.rank_faults:die_with_a_full_volume")
    assert history.committed(job.directory) == []
    outcomes = job.go_on(number)
    assert outcomes[0].exit_code == 0, outcomes[0].stderr
    assert outcomes[0].restored.restored_from == "Snapshot"
    assert history.audit(job.directory) == []
    steps = [found.step for found in history.committed(job.directory)]
    assert steps == list(range(1, STEPS + 1))
