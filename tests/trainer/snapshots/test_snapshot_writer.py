"""When a rank copies its state, into which of its slots, what waits for the copy, and what happens
before its report; in one process.
"""

from __future__ import annotations

import errno
import pickle
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import xxhash
from torch import nn

from regroup_trainer.agent.snapshot_store import SnapshotStore
from regroup_trainer.checkpoint import checkpointer as checkpointer_module
from regroup_trainer.checkpoint import lineage, shard_file
from regroup_trainer.checkpoint import staging as copies
from regroup_trainer.checkpoint.checkpointer import Checkpointer
from regroup_trainer.checkpoint.export import read_model
from regroup_trainer.checkpoint.image import Image, allocated, size_of
from regroup_trainer.checkpoint.layout import DataIdentity, Layout, RunIdentity
from regroup_trainer.checkpoint.save import Saver
from regroup_trainer.checkpoint.save_schedule import SaveTimer
from regroup_trainer.checkpoint.state_plan import StatePlan
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import CheckpointPolicy, ResumePolicy
from regroup_trainer.protocol.generation import Assignment, GenerationRecord
from regroup_trainer.protocol.rank_messages import (
    CheckpointFailed,
    CheckpointSaved,
    RankReport,
    SnapshotsOff,
    SnapshotTaken,
)
from regroup_trainer.snapshots import snapshot_schedule, snapshot_writer
from regroup_trainer.snapshots.places import FILES, REST, SLOTS, TENSORS
from regroup_trainer.snapshots.snapshot_writer import MemorySnapshots, Source
from regroup_trainer.step.state import Position, TrainState
from regroup_trainer.system.memory_limit import describe_bytes
from tests.support.generations import make_places
from tests.support.ranks import FIRST, generation, train_config
from tests.support.waiting import wait_until

DEADLINE = 60.0
DATA = DataIdentity(fingerprint="f", samples=1, seed=1, global_batch_size=1, sequence_length=1)
IDENTITY = RunIdentity({"name": "tiny"}, "ddp", DATA)
CARRIED = b"steps that the volume may lack"


@pytest.fixture(autouse=True)
def group(monkeypatch: pytest.MonkeyPatch, group_of_one: GenerationGroup) -> GenerationGroup:
    """A process group of one rank, in which snapshots may follow each other at once."""
    monkeypatch.setattr(snapshot_schedule, "LEAST_SECONDS", 0.0)
    return group_of_one


@dataclass
class Reports:
    """Stands for the agent: the reports that it received, and their place among `events`."""

    events: list[str] = field(default_factory=list)
    received: queue.Queue[RankReport] = field(default_factory=queue.Queue)

    def send(self, report: RankReport) -> None:
        self.events.append(report.kind)
        self.received.put(report)

    def next(self, kind: type[Any]) -> Any:
        report = self.received.get(timeout=DEADLINE)
        assert isinstance(report, kind)
        return report


class Rank:
    """A rank that makes steps, and its agent's memory."""

    def __init__(
        self, folder: Path, group: GenerationGroup, sync_history: Callable[[], None] = lambda: None
    ) -> None:
        self.reports = Reports()
        model = nn.Linear(3, 2)
        self.state = TrainState(
            model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), Position()
        )
        self.store = SnapshotStore(folder / "snapshots", ranks=1)
        self.layout = Layout(folder)
        self.layout.lineage.mkdir()
        self.layout.checkpoints.mkdir()
        begun = {
            "generation": FIRST,
            "parent": None,
            "resumed_from_step": 0,
            "resume": ResumePolicy(),
            "data": DATA,
        }
        lineage.begin(self.layout, lineage.LineageRecord.model_validate(begun))
        self.saver = Saver(self.layout, FIRST, group, IDENTITY, sync_history)
        self.record = generation(folder, 1, train_config(), checkpoint={"memory_snapshot_steps": 1})

    def snapshots(
        self, record: GenerationRecord | None = None, rank: int = 0, free_slot: int = 0
    ) -> MemorySnapshots:
        """The memory snapshots of the rank with this number."""
        assignment = Assignment(
            record=record or self.record,
            rank=rank,
            local_rank=0,
            channel="",
            snapshots=str(self.store.folder),
            free_slot=free_slot,
        )
        source = Source(self.state, lambda: self.plan, lambda: CARRIED)
        return MemorySnapshots(assignment, self.saver, source, self.reports)

    def checkpointer(
        self, policy: CheckpointPolicy | None = None, timer: SaveTimer | None = None
    ) -> Checkpointer:
        return Checkpointer(
            self.saver, self.state, policy or CheckpointPolicy(), self.reports, None, timer
        )

    @property
    def plan(self) -> StatePlan:
        """Made after the first step."""
        if not hasattr(self, "_plan"):
            self._plan = StatePlan(self.state)
        return self._plan

    def step(self) -> None:
        """As training does."""
        self.state.optimizer.zero_grad()
        self.state.model(torch.ones(3)).sum().backward()
        self.state.optimizer.step()
        self.state.position = Position(self.state.position.step + 1, 0, 0)

    def take(self, snapshots: MemorySnapshots) -> SnapshotTaken:
        """Make a step, after which a snapshot is taken, and have the agent hold it."""
        self.step()
        snapshots.after_step()
        snapshots.begin()
        report: SnapshotTaken = self.reports.next(SnapshotTaken)
        self.store.take(report, 0)
        return report

    def holds(self, report: SnapshotTaken) -> bool:
        """Whether the agent has all files of the snapshot, as reported."""
        held = self.store.get(report.number, report.shard)
        assert held is not None
        contents = {
            name: held.slot.path(name).read_bytes()[: report.files[name].size] for name in FILES
        }
        return all(
            xxhash.xxh3_64(contents[name]).hexdigest() == report.files[name].checksum
            for name in FILES
        )


def test_no_snapshot_is_due_before_the_last_one_is_complete_everywhere(
    tmp_path: Path, group: GenerationGroup
) -> None:
    rank = Rank(tmp_path, group)
    snapshots = rank.snapshots()
    first = rank.take(snapshots)
    rank.store.complete(first.number)
    rank.step()
    snapshots.after_step()
    wait_until("the next snapshot is due", snapshots.due)
    second = rank.take(snapshots)
    for _ in range(3):
        rank.step()
        snapshots.after_step()
        assert not snapshots.due()  # all that is known to be complete is the first
    rank.store.complete(second.number)
    rank.step()
    snapshots.after_step()
    wait_until("the next snapshot is due", snapshots.due)
    snapshots.close(2.0)


def test_no_snapshot_is_due_before_there_is_memory_for_it(
    tmp_path: Path, group: GenerationGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm, may_end = Image.warm, threading.Event()

    def slow(image: Image) -> None:
        assert may_end.wait(DEADLINE)
        warm(image)

    monkeypatch.setattr(Image, "warm", slow)
    rank = Rank(tmp_path, group)
    snapshots = rank.snapshots()
    for _ in range(2):
        rank.step()
        snapshots.after_step()
        assert not snapshots.due()
        assert not snapshots.ready
    may_end.set()
    wait_until("a snapshot is due", snapshots.due)
    assert snapshots.ready
    snapshots.close(2.0)


@pytest.mark.parametrize("free", [0, 1])
def test_slots_are_written_in_turn_beginning_with_the_free_one(
    tmp_path: Path, group: GenerationGroup, free: int
) -> None:
    rank = Rank(tmp_path, group)
    snapshots = rank.snapshots(free_slot=free)
    used = []
    last: SnapshotTaken | None = None
    for _ in range(3):
        report = rank.take(snapshots)
        assert rank.holds(report)
        assert last is None or rank.holds(
            last
        )  # until the newer one is complete the older one must serve
        used.append(report.slot)
        rank.store.complete(report.number)
        last = report
    assert used == [free, 1 - free, free]
    snapshots.close(2.0)


def test_of_a_state_that_all_have_copies_are_kept_on_two_nodes(
    tmp_path: Path, group: GenerationGroup
) -> None:
    members = make_places("aabb", ranks=2)
    writing = []
    for number in range(2 * len(members)):
        folder = tmp_path / str(number)
        folder.mkdir()
        rank = Rank(folder, group)
        snapshots = rank.snapshots(rank.record.model_copy(update={"members": members}), number)
        rank.step()
        snapshots.after_step()
        snapshots.begin()
        snapshots.close(2.0)
        if rank.reports.events:
            writing.append(number)
    assert writing == [0, 4]


@pytest.mark.parametrize(
    ("nodes", "shards"),
    [
        pytest.param("abc", [2, 2, 2], id="each keeps another's"),
        pytest.param("aab", [1, 2, 3], id="the lonely one keeps those of both others"),
    ],
)
def test_the_memory_that_is_wanted_is_for_the_shards_of_others_too(
    tmp_path: Path,
    group: GenerationGroup,
    monkeypatch: pytest.MonkeyPatch,
    nodes: str,
    shards: list[int],
) -> None:
    monkeypatch.setattr(snapshot_writer, "available_bytes", lambda: -1)
    for number, count in enumerate(shards):
        folder = tmp_path / str(number)
        folder.mkdir()
        rank = Rank(folder, group)
        rank.plan.replicated = False
        snapshots = rank.snapshots(
            rank.record.model_copy(update={"members": make_places(nodes)}), number
        )
        rank.step()
        snapshots.after_step()
        snapshots.close(2.0)
        bytes_wanted = (SLOTS * count + 1) * allocated(
            size_of(rank.plan.spans)
        )  # and a checkpoint's copy
        assert (
            f"need {describe_bytes(bytes_wanted)} more on p{number}"
            in rank.reports.next(SnapshotsOff).why
        )


def test_a_snapshot_does_not_need_the_volume_and_carries_the_steps_that_it_may_lack(
    tmp_path: Path, group: GenerationGroup
) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device", "/volume/history")

    rank = Rank(tmp_path, group, sync_history=fail)
    snapshots = rank.snapshots()
    report = rank.take(snapshots)
    assert rank.reports.events == ["snapshot_taken"]
    held = rank.store.get(report.number, report.shard)
    assert held is not None
    rest = pickle.loads(held.slot.path(REST).read_bytes())
    assert rest.history == CARRIED
    snapshots.close(2.0)


def test_a_snapshot_for_which_there_was_no_memory_is_completed_when_there_is(
    tmp_path: Path, group: GenerationGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, left = Path.write_bytes, [1, 2, 3]

    def write(path: Path, content: bytes) -> int:
        if left:
            left.pop()
            raise OSError(12, "Cannot allocate memory", str(path))
        return plain(path, content)

    rank = Rank(tmp_path, group)
    snapshots = rank.snapshots()
    monkeypatch.setattr(snapshot_writer, "_RETRY_SECONDS", (0.01,))
    monkeypatch.setattr(Path, "write_bytes", write)
    first = rank.take(snapshots)
    assert not left
    rank.store.complete(first.number)
    rank.step()
    snapshots.after_step()
    wait_until("the next snapshot is due", snapshots.due)
    snapshots.close(2.0)


def test_the_history_is_flushed_before_a_save_is_published_and_reported(
    tmp_path: Path, group: GenerationGroup
) -> None:
    def flush() -> None:
        rank.reports.events.append("flushed")
        rank.reports.events += [path.name for path in rank.layout.checkpoints.glob("step-1")]

    rank = Rank(tmp_path, group, sync_history=flush)
    checkpointer = rank.checkpointer()
    rank.step()
    assert checkpointer.save_durably()
    checkpointer.finish()
    assert rank.reports.events == ["flushed", "checkpoint_saved"]


@pytest.fixture
def may_write(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Shards hang in their write until this is set, and a save is soon late."""
    plain, may_write = shard_file.write, threading.Event()

    def hang(*arguments: Any) -> Any:
        assert may_write.wait(DEADLINE)
        return plain(*arguments)

    monkeypatch.setattr(shard_file, "write", hang)
    monkeypatch.setattr(checkpointer_module, "_PATIENCE_SECONDS", 0.05)
    return may_write


def test_a_save_that_hangs_postpones_the_next_and_holds_up_no_training(
    tmp_path: Path, group: GenerationGroup, may_write: threading.Event
) -> None:
    rank = Rank(tmp_path, group)
    checkpointer = rank.checkpointer(CheckpointPolicy(interval_steps=1))
    for _ in range(3):
        rank.step()
        checkpointer.after_step()
        checkpointer.begin()
    failed = rank.reports.next(CheckpointFailed)
    assert failed.step == 2
    assert "the save of step 1 has not ended" in failed.error
    assert not checkpointer.due()
    assert rank.reports.events == ["checkpoint_failed"]  # once for each save that hangs
    may_write.set()

    def has_ended() -> bool:
        checkpointer.after_step()
        return not checkpointer.saving

    wait_until("the end of the save", has_ended)
    assert rank.reports.next(CheckpointSaved).step == 1
    assert checkpointer.due()
    assert checkpointer.save_durably()
    assert rank.reports.next(CheckpointSaved).step == 3
    checkpointer.finish()


def test_a_save_that_failed_or_was_given_up_is_due_again_long_before_the_next_interval(
    tmp_path: Path, group: GenerationGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    rank = Rank(tmp_path, group)
    policy = CheckpointPolicy(interval_steps=1000)
    checkpointer = rank.checkpointer(policy, SaveTimer(now=lambda: now))
    rank.step()
    checkpointer.after_step()
    with monkeypatch.context() as full:
        full.setattr(shard_file, "write", Mock(side_effect=OSError(errno.ENOSPC, "no space")))
        checkpointer.begin()
        checkpointer.finish(state_lives_on=True)
    assert rank.reports.next(CheckpointFailed).step == 1
    assert not checkpointer.due()
    now = 1000.0
    assert checkpointer.due()
    following = rank.checkpointer(policy, checkpointer.timer)  # the state goes on, rank 0 too
    assert following.due()
    following.begin()
    assert not following.due()
    following.let_go()
    last = rank.checkpointer(policy, following.timer)
    assert not last.due()
    now = 2000.0
    assert last.due()


def test_a_new_rank_0_tries_a_save_again_whose_end_only_the_former_one_knew(
    tmp_path: Path, group: GenerationGroup
) -> None:
    now = 0.0
    policy = CheckpointPolicy(interval_steps=1000)
    rank = Rank(tmp_path, replace(group, rank=1))
    checkpointer = rank.checkpointer(policy, SaveTimer(now=lambda: now))
    rank.step()
    checkpointer.after_step()
    checkpointer.begin()

    def own_part_is_written() -> bool:
        checkpointer.after_step()
        return not checkpointer.saving

    wait_until("the end of the rank's own part", own_part_is_written)
    checkpointer.let_go()
    rank.saver = replace(rank.saver, group=group)
    following = rank.checkpointer(policy, checkpointer.timer)
    now = 10.0
    assert following.due()


def test_a_state_that_lives_on_leaves_a_save_that_hangs_behind(
    tmp_path: Path, group: GenerationGroup, may_write: threading.Event
) -> None:
    """Else a drained worker would be killed, and a resize stand still, while the volume is away."""
    rank = Rank(tmp_path, group)
    checkpointer = rank.checkpointer(CheckpointPolicy(interval_steps=1))
    rank.step()
    checkpointer.after_step()
    checkpointer.begin()
    wait_until("the save to be late", checkpointer.is_late)
    checkpointer.finish(state_lives_on=True)
    assert not may_write.is_set()
    may_write.set()


@dataclass
class HeldBack:
    """A copy beside the training that does not begin before somebody waits for its end."""

    may_begin: threading.Event = field(default_factory=threading.Event)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain, may_begin = copies._copy, self.may_begin

        def copy(slots: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
            if threading.current_thread() is not threading.main_thread():
                assert may_begin.wait(DEADLINE)
            plain(slots, sources)

        class Awaited(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                may_begin.set()
                return super().wait(timeout)

        monkeypatch.setattr(copies, "_copy", copy)
        monkeypatch.setattr(copies, "threading", SimpleNamespace(Event=Awaited))


@pytest.fixture
def held_back(monkeypatch: pytest.MonkeyPatch) -> HeldBack:
    held = HeldBack()
    held.install(monkeypatch)
    return held


def test_the_optimizer_waits_for_the_copy_of_a_snapshot(
    tmp_path: Path, group: GenerationGroup, held_back: HeldBack
) -> None:
    rank = Rank(tmp_path, group)
    snapshots = rank.snapshots()
    rank.step()
    snapshots.after_step()
    before = weight(rank.state)
    snapshots.begin()
    rank.step()
    held_back.may_begin.set()  # if nobody has waited, the copy finds the new state
    report = rank.reports.next(SnapshotTaken)
    rank.store.take(report, 0)
    held = rank.store.get(report.number, 0)
    assert held is not None
    assert before in held.slot.path(TENSORS).read_bytes()
    assert weight(rank.state) != before
    snapshots.close(2.0)


def test_the_optimizer_waits_for_the_copy_of_a_save(
    tmp_path: Path, group: GenerationGroup, held_back: HeldBack
) -> None:
    rank = Rank(tmp_path, group)
    checkpointer = rank.checkpointer()
    rank.step()
    before = weight(rank.state)
    checkpointer.begin()
    rank.step()
    held_back.may_begin.set()
    checkpointer.finish()
    assert rank.reports.next(CheckpointSaved).step == 1
    assert bytes_of(read_model(rank.layout.published(1))["weight"]) == before
    assert weight(rank.state) != before


def weight(state: TrainState) -> bytes:
    """The bytes of a parameter."""
    assert isinstance(state.model, nn.Linear)
    return bytes_of(state.model.weight)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()
