"""An overload is bounded, has proof, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from devcluster import cgroups
from devcluster.cgroups import CPU_WEIGHTS
from devcluster.cluster import Cluster
from devcluster.processes import Launch, cpu_seconds
from soak import machine_faults
from soak.aim import Missed
from soak.kinds import FAULTS
from soak.machine_faults import HOG, LONGEST_SECONDS, PROBE_SECONDS, Hogs, overload, waited
from soak.process import Process
from tests.support.soak_site import FakeCgroups, FakeJob, FakeSite, aim

GROUP = "regroup/soak-7/overload"


class Started:
    """The programs of a cluster, by name."""

    def __init__(self) -> None:
        self.launched: dict[str, Launch] = {}

    def start(self, launch: Launch) -> None:
        """It runs."""
        self.launched[launch.name] = launch

    def kill(self, name: str) -> None:
        """It has ended."""
        del self.launched[name]


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.fixture
def site(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSite:
    fake = FakeCgroups(tmp_path)
    for name in ("create", "remove", "hierarchies"):
        monkeypatch.setattr(cgroups, name, getattr(fake, name))
    cluster = SimpleNamespace(name="soak-7", processes=started)
    return FakeSite(cluster, w0=Process.of(os.getpid()))


def cores_taken(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    """Within five seconds, of all cores; the agent waits 0.4 s for one."""
    clock, agent = iter((100.0, 105.0)), iter((40.0, 40.4))
    computed = iter((1.0, 1.0 + share * 5.0 * (os.cpu_count() or 1)))
    monkeypatch.setattr(machine_faults, "waited", lambda _pid: next(agent))
    monkeypatch.setattr(Hogs, "computed", lambda _hogs: next(computed))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)


def test_an_overload_lasts_until_it_is_undone(
    site: FakeSite, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores_taken(monkeypatch, 0.66)
    struck = overload(aim(site, FakeJob("w0")))
    assert struck.proof == (
        "others took 66% of the cores, and the agent of w0 waited 0.4 s of 5 s for one"
    )
    assert len(started.launched) >= 2 * (os.cpu_count() or 1)
    assert {launch.cgroup for launch in started.launched.values()} == {GROUP}
    assert (tmp_path / GROUP / "cpu.weight").read_text() == CPU_WEIGHTS["cpu.weight"]
    struck.undo()
    assert not started.launched
    assert not (tmp_path / GROUP).exists()


def test_an_overload_that_takes_few_cores_is_missed_and_undone(
    site: FakeSite, started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores_taken(monkeypatch, 0.2)
    with pytest.raises(Missed, match="others took 20% of the cores"):
        overload(aim(site, FakeJob("w0")))
    assert not started.launched
    assert not (tmp_path / GROUP).exists()


def test_what_hogs_compute_is_counted_while_they_run() -> None:
    processes = SimpleNamespace(pid=lambda name: os.getpid() if name == "overload-0" else None)
    hogs = Hogs(cast(Cluster, SimpleNamespace(name="soak-7", processes=processes)))
    assert hogs.computed() == pytest.approx(cpu_seconds(os.getpid()), abs=1)


def test_what_computes_ends_by_itself() -> None:
    (longest,) = (kind.seconds[1] for kind in FAULTS if kind.name == "overload")
    assert longest + PROBE_SECONDS < LONGEST_SECONDS
    shortly = HOG.replace(f"+ {LONGEST_SECONDS}", "+ 0.1")
    assert shortly != HOG
    subprocess.run([sys.executable, "-c", shortly], check=True, timeout=60)


def test_the_threads_of_a_process_wait_for_cores() -> None:
    assert waited(os.getpid()) > 0
    assert waited(2**22 + 1) == 0, "no process has this number"
