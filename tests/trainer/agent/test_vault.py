"""The memory of snapshots: what is whole is never overwritten before something newer is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from regroup_trainer.agent.vault import Held, Vault
from regroup_trainer.contract import (
    GenerationNumber,
    GenerationRecord,
    SnapshotFile,
    SnapshotNumber,
    SnapshotSource,
    SnapshotTaken,
)
from regroup_trainer.snapshots.places import (
    FILES,
    REST,
    TENSORS,
    CompletePage,
    held_file,
    read_description,
    slot_file,
)
from tests.trainer.agent.test_memory import make_generation

FIRST = GenerationNumber(1, 1)


def at(step: int, n: int = 1) -> SnapshotNumber:
    return SnapshotNumber(step, GenerationNumber(1, n), 2)


def taken(step: int, slot: int, shard: int = 0, n: int = 1) -> SnapshotTaken:
    files = {name: SnapshotFile(2, "c") for name in FILES}
    number = at(step, n)
    return SnapshotTaken(generation=number.generation, rank=shard, number=number, shard=shard, slot=slot, files=files)


def naming(n: int, number: SnapshotNumber | None) -> GenerationRecord:
    source = SnapshotSource(number=number, places=("a:1", "b:1")) if number else None
    return make_generation(1, n).model_copy(update={"snapshot": source})


@pytest.fixture
def vault(tmp_path: Path) -> Vault:
    vault = Vault(tmp_path / "snapshots", ranks=1)
    assert vault.begin(naming(1, None)) == [0]
    return vault


def test_what_a_rank_writes_is_read_by_its_successors(vault: Vault) -> None:
    slot_file(vault.folder, 0, 1, TENSORS).write_bytes(b"tensors")
    vault.take(taken(10, slot=1), 0)
    assert held_file(vault.folder, at(10), 0, TENSORS).read_bytes() == b"tensors"
    assert read_description(vault.folder, at(10), 0)[REST] == SnapshotFile(2, "c")


def test_a_new_generation_may_not_write_over_the_snapshot_that_it_may_have_to_read(vault: Vault) -> None:
    vault.take(taken(10, slot=0), 0)
    vault.take(taken(20, slot=1), 0)
    assert vault.begin(naming(2, at(20))) == [0]
    assert [kept.number for kept in vault.kept()] == [at(20)]
    assert vault.begin(naming(3, at(20))) == [0]


def test_the_other_slot_is_free_when_the_first_holds_the_snapshot(vault: Vault) -> None:
    vault.take(taken(10, slot=0), 0)
    assert vault.begin(naming(2, at(10))) == [1]


def test_what_a_generation_does_not_name_is_forgotten(vault: Vault) -> None:
    vault.take(taken(10, slot=0), 0)
    vault.begin(naming(2, None))
    assert vault.kept() == ()
    assert not held_file(vault.folder, at(10), 0, TENSORS).exists()


def test_a_complete_snapshot_lets_the_older_ones_go_and_is_told_to_the_ranks(vault: Vault) -> None:
    page = CompletePage(vault.folder)
    vault.take(taken(10, slot=0), 0)
    vault.take(taken(20, slot=1), 0)
    assert [kept.number for kept in vault.kept()] == [at(10), at(20)]
    vault.complete(at(20))
    assert [kept.number for kept in vault.kept()] == [at(20)]
    assert page.step == 20


def test_a_complete_snapshot_replaces_one_of_an_abandoned_line_that_was_further(vault: Vault) -> None:
    vault.take(taken(40, slot=0), 0)
    vault.begin(naming(2, at(40)))
    vault.take(taken(30, slot=1, n=2), 0)
    vault.complete(at(30, n=2))
    assert [kept.number for kept in vault.kept()] == [at(30, n=2)]


def test_writing_a_slot_again_takes_the_place_of_what_it_held(vault: Vault) -> None:
    vault.take(taken(10, slot=0), 0)
    vault.take(taken(20, slot=0), 0)
    assert [kept.number for kept in vault.kept()] == [at(20)]


def test_memory_for_a_neighbours_shards_is_used_again(vault: Vault) -> None:
    files = {name: SnapshotFile(1, "c") for name in FILES}
    seen = set()
    for step in (10, 20, 30, 40):
        slot = vault.borrow()
        seen.add(id(slot))
        vault.keep(at(step), 1, Held(slot, files))
        vault.complete(at(step))
    assert len(seen) == 2, "one whole, one being filled"


def test_the_same_shard_sent_twice_leaves_no_memory_behind(vault: Vault) -> None:
    files = {name: SnapshotFile(1, "c") for name in FILES}
    first, second = vault.borrow(), vault.borrow()
    vault.keep(at(10), 1, Held(first, files))
    vault.keep(at(10), 1, Held(second, files))
    assert vault.borrow() is first
    assert [kept.shards for kept in vault.kept()] == [(1,)]
