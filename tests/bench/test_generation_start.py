"""The benchmarks of a generation's start: store, full mesh and copies of memory snapshots."""

from __future__ import annotations

import pytest

from bench import full_mesh, generation_store, snapshot_traffic
from bench.generation_store import CONNECTIONS, PROCESSES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("subject", [PROCESSES, CONNECTIONS])
def test_the_store_answers_each_kind_of_request(subject: str) -> None:
    found = generation_store.measure("2", subject)
    assert found.keys() == generation_store.UNITS.keys()
    assert all(found.values())


@pytest.mark.long
@pytest.mark.parametrize("subject", full_mesh.SETTINGS)
def test_ranks_are_connected_after_their_first_collectives(subject: str) -> None:
    found = full_mesh.measure("3", subject)
    assert found.keys() == full_mesh.UNITS.keys()
    assert found["used"] == 3  # the one that listens, and two peers
    # A lazy rank is released at times: its first connection may be made before the cut, or not.
    assert found["released_seconds"] is not None or subject == "lazy"


@pytest.mark.long
def test_a_rank_asks_the_store_as_often_however_many_ranks_there_are() -> None:
    for ranks in (2, 4):
        assert full_mesh.measure(str(ranks), "regroup")["requests"] == 2 * ranks


def test_ranks_meet_those_of_a_release_without_the_setting() -> None:
    with full_mesh.clean_process() as pool:
        found = pool.submit(full_mesh.met, [full_mesh.SETTINGS["regroup"], {}, {}]).result()
    assert found["used"] == 3


def test_a_worker_sends_a_shard_once_to_one_neighbour() -> None:
    found = snapshot_traffic.measure("16", "regroup")
    assert found.keys() == snapshot_traffic.UNITS.keys()
    assert found["copies"] == 1
    assert 1 < (found["wire_ratio"] or 0) < 1.01


def test_its_share_falls_with_the_ranks() -> None:
    few, many = (snapshot_traffic.measure(case, "regroup") for case in ("16", "32"))
    assert (few["worker_mb"] or 0) == 2 * (many["worker_mb"] or 0)
