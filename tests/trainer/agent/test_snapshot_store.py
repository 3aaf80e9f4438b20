"""The memory for snapshots: a whole one is never overwritten before a newer one is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from regroup_trainer.agent.snapshot_store import HeldShard, SnapshotStore
from regroup_trainer.protocol.generation import (
    GenerationNumber,
    GenerationRecord,
    SnapshotNumber,
    SnapshotSource,
)
from regroup_trainer.protocol.rank_messages import SnapshotFile, SnapshotTaken
from regroup_trainer.snapshots.places import (
    FILES,
    REST,
    TENSORS,
    CompletePage,
    held_file,
    read_description,
    slot_file,
)
from tests.support.generations import make_generation

FIRST = GenerationNumber(1, 1)


def at(step: int, n: int = 1) -> SnapshotNumber:
    return SnapshotNumber(step, GenerationNumber(1, n), 2)


def taken(step: int, slot: int, shard: int = 0, n: int = 1) -> SnapshotTaken:
    files = {name: SnapshotFile(2, "c") for name in FILES}
    number = at(step, n)
    return SnapshotTaken(
        generation=number.generation, rank=shard, number=number, shard=shard, slot=slot, files=files
    )


def naming(n: int, number: SnapshotNumber | None) -> GenerationRecord:
    source = SnapshotSource(number=number, places=("a:1", "b:1")) if number else None
    return make_generation(1, n).model_copy(update={"snapshot": source})


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    store = SnapshotStore(tmp_path / "snapshots", ranks=1)
    assert store.begin(naming(1, None)) == [0]
    return store


def test_what_a_rank_writes_is_read_by_its_successors(store: SnapshotStore) -> None:
    slot_file(store.folder, 0, 1, TENSORS).write_bytes(b"tensors")
    store.take(taken(10, slot=1), 0)
    assert held_file(store.folder, at(10), 0, TENSORS).read_bytes() == b"tensors"
    assert read_description(store.folder, at(10), 0)[REST] == SnapshotFile(2, "c")


def test_a_new_generation_does_not_overwrite_the_snapshot_that_it_may_read(
    store: SnapshotStore,
) -> None:
    store.take(taken(10, slot=0), 0)
    store.take(taken(20, slot=1), 0)
    assert store.begin(naming(2, at(20))) == [0]
    assert [held.number for held in store.held()] == [at(20)]
    assert store.begin(naming(3, at(20))) == [0]


def test_the_other_slot_is_free_when_the_first_holds_the_snapshot(store: SnapshotStore) -> None:
    store.take(taken(10, slot=0), 0)
    assert store.begin(naming(2, at(10))) == [1]


def test_what_a_generation_does_not_name_is_forgotten(store: SnapshotStore) -> None:
    store.take(taken(10, slot=0), 0)
    store.begin(naming(2, None))
    assert store.held() == ()
    assert not held_file(store.folder, at(10), 0, TENSORS).exists()


def test_a_complete_snapshot_frees_older_ones_and_is_shown_to_the_ranks(
    store: SnapshotStore,
) -> None:
    page = CompletePage(store.folder)
    store.take(taken(10, slot=0), 0)
    store.take(taken(20, slot=1), 0)
    assert [held.number for held in store.held()] == [at(10), at(20)]
    store.complete(at(20))
    assert [held.number for held in store.held()] == [at(20)]
    assert page.step == 20


def test_a_complete_snapshot_replaces_an_abandoned_one_of_a_later_step(
    store: SnapshotStore,
) -> None:
    store.take(taken(40, slot=0), 0)
    store.begin(naming(2, at(40)))
    store.take(taken(30, slot=1, n=2), 0)
    store.complete(at(30, n=2))
    assert [held.number for held in store.held()] == [at(30, n=2)]


def test_writing_a_slot_again_takes_the_place_of_what_it_held(store: SnapshotStore) -> None:
    store.take(taken(10, slot=0), 0)
    store.take(taken(20, slot=0), 0)
    assert [held.number for held in store.held()] == [at(20)]


def test_memory_for_a_neighbours_shards_is_used_again(store: SnapshotStore) -> None:
    files = {name: SnapshotFile(1, "c") for name in FILES}
    seen = set()
    for step in (10, 20, 30, 40):
        slot = store.acquire()
        seen.add(id(slot))
        store.add(at(step), 1, HeldShard(slot, files))
        store.complete(at(step))
    assert len(seen) == 2, "one whole, one being filled"


def test_the_same_shard_sent_twice_leaves_no_memory_behind(store: SnapshotStore) -> None:
    files = {name: SnapshotFile(1, "c") for name in FILES}
    first, second = store.acquire(), store.acquire()
    store.add(at(10), 1, HeldShard(first, files))
    store.add(at(10), 1, HeldShard(second, files))
    assert store.acquire() is first
    assert [held.shards for held in store.held()] == [(1,)]
