"""A memory snapshot is whole when two nodes hold each of its shards."""

from __future__ import annotations

from pathlib import Path

from regroup_trainer.protocol.generation import GenerationNumber, SnapshotNumber
from regroup_trainer.snapshots.places import held_file
from soak.evidence import WholeSnapshot
from soak.held import whole
from soak.records import Stored

NODES = {"w0": "n0", "w1": "n1", "w2": "n2"}
SHARED = {
    "w0": ["held-40-1-2-3-0.json", "held-40-1-2-3-2.json"],
    "w1": ["held-40-1-2-3-1.json", "held-40-1-2-3-0.json"],
    "w2": ["held-40-1-2-3-2.json", "held-40-1-2-3-1.json"],
}
"""Each worker holds its own shard and its neighbour's."""
STORED = Stored(40, (1, 2))


def test_a_snapshot_is_whole_when_each_shard_is_on_two_nodes() -> None:
    holders = ({"w0", "w1"}, {"w1", "w2"}, {"w2", "w0"})
    assert whole(SHARED, NODES) == (WholeSnapshot(STORED, tuple(map(frozenset, holders))),)


def test_a_snapshot_is_not_whole_while_a_shard_is_sent() -> None:
    assert not whole({**SHARED, "w2": ["held-40-1-2-3-2.json"]}, NODES)
    assert not whole({**SHARED, "w2": []}, NODES)


def test_two_workers_of_one_node_do_not_make_a_snapshot_whole() -> None:
    assert not whole(SHARED, {**NODES, "w1": "n0"})


def test_on_a_single_node_one_worker_is_enough() -> None:
    alone = {"w0": ["held-40-1-2-1-0.json"]}
    assert whole(alone, {"w0": "n0"}) == (WholeSnapshot(STORED, (frozenset({"w0"}),)),)


def test_other_files_and_shards_of_other_generations_do_not_count() -> None:
    other = {"w0": ["held-40-1-2-2-0.json", "slot-0-0.rest"], "w1": ["held-40-1-3-2-1.json"]}
    assert whole(other, NODES) == ()


def test_the_names_are_those_that_agents_give() -> None:
    number = SnapshotNumber(40, GenerationNumber(1, 2), 3)
    names = {
        pod: [held_file(Path(), number, shard, "json").name for shard in range(3)]
        for pod in ("w0", "w1")
    }
    (found,) = whole(names, NODES)
    assert found.stored == STORED
