"""Control groups of clusters that come and go at the same time, and of who uses them."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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


def own_groups(process: str) -> str:
    return Path(f"/proc/{process}/cgroup").read_text()


def test_a_process_and_what_it_starts_are_inside_a_group_for_a_while() -> None:
    before = own_groups("self")
    with cgroups.inside(f"{PARENT}/user"), subprocess.Popen(["sleep", "60"]) as child:
        inside = own_groups("self"), own_groups(str(child.pid))
        child.kill()
    assert all(f":/{PARENT}/user\n" in groups for groups in inside)
    assert own_groups("self") == before
    assert not any((hierarchy / PARENT).exists() for hierarchy in cgroups.hierarchies())
