"""Programs of the control plane end, and are started again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from devcluster.processes import Launch, Processes
from soak.aim import Missed
from soak.control_faults import component_away
from tests.support.soak_site import FakeJob, FakeSite, aim


def test_a_program_is_gone_until_it_is_started_again(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    launch = Launch("kube-scheduler", ("sleep", "600"))
    cluster = SimpleNamespace(processes=processes, start_api_server=lambda: processes.start(launch))
    processes.start(launch)
    pid = processes.pid("kube-scheduler")
    try:
        struck = component_away(aim(FakeSite(cluster), FakeJob()), "kube-scheduler")
        assert processes.pid("kube-scheduler") is None
        assert struck.proof == f"kube-scheduler (process {pid}) is gone"
        struck.undo()
        assert processes.pid("kube-scheduler") not in (None, pid)
    finally:
        processes.kill("kube-scheduler")


def test_a_program_that_does_not_run_is_missed(tmp_path: Path) -> None:
    cluster = SimpleNamespace(processes=Processes(tmp_path))
    with pytest.raises(Missed, match="etcd does not run"):
        component_away(aim(FakeSite(cluster), FakeJob()), "etcd")
