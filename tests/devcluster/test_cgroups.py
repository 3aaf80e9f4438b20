"""Control groups of clusters that come and go at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from devcluster import cgroups

pytestmark = pytest.mark.cluster

PARENT = "regroup-test"
TIMES = 50


def come_and_go(name: str) -> None:
    for _ in range(TIMES):
        cgroups.create(f"{PARENT}/{name}")
        cgroups.remove(f"{PARENT}/{name}")
        cgroups.remove_if_empty(PARENT)


def test_the_end_of_a_cluster_does_not_remove_the_parent_of_one_that_begins() -> None:
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(come_and_go, name) for name in ("one", "other")]:
            done.result()
    assert not any((hierarchy / PARENT).exists() for hierarchy in cgroups.hierarchies())
