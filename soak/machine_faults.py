"""Faults of the machine on which all nodes run."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from devcluster import cgroups
from devcluster.cluster import Cluster
from devcluster.processes import Launch
from soak.aim import Aim, Missed, Struck

HOGS_A_CORE = 2
LONGEST_SECONDS = 90
"""A process that computes ends by itself after so long, whatever becomes of the soak."""
HOG = f"""
import time
end = time.monotonic() + {LONGEST_SECONDS}
while time.monotonic() < end:
    pass
"""
PROBE_SECONDS, WAITED_SECONDS = 5.0, 1.0
"""An agent, which computes little, waits so long for a core in so long a time."""


def overload(aim: Aim) -> Struck:
    """Others take most of the cores, so that heartbeats are late."""
    pod = aim.worker()[1]
    agent, hogs = aim.site.main_process(pod), Hogs(aim.site.cluster)
    hogs.start()
    before = waited(agent.pid)
    time.sleep(PROBE_SECONDS)
    seconds = waited(agent.pid) - before
    shown = f"the agent of {pod['metadata']['name']} waited {seconds:.1f} s for a core"
    if seconds < WAITED_SECONDS:
        hogs.end()
        raise Missed(f"{shown} within {PROBE_SECONDS:.0f} s")
    return Struck(f"{shown} within {PROBE_SECONDS:.0f} s", hogs.end)


def waited(pid: int) -> float:
    """Seconds that the threads of a process have waited for a core, together; 0 when it is gone."""
    nanoseconds = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            nanoseconds += int(file.read_text().split()[1])
    return nanoseconds / 1e9


class Hogs:
    """Processes that only compute, in a control group of their own beside those of the nodes."""

    def __init__(self, cluster: Cluster) -> None:
        self._processes = cluster.processes
        self._group = f"regroup/{cluster.name}/overload"
        count = HOGS_A_CORE * (os.cpu_count() or 1)
        self._names = [f"overload-{number}" for number in range(count)]

    def start(self) -> None:
        """The group weighs eight times as much as a node."""
        cgroups.create(self._group)
        for hierarchy in cgroups.hierarchies():
            for name, weight in cgroups.CPU_WEIGHTS.items():
                file = hierarchy / self._group / name
                if file.exists():
                    file.write_text(weight)
        for name in self._names:
            self._processes.start(Launch(name, (sys.executable, "-c", HOG), cgroup=self._group))

    def end(self) -> None:
        """End those that still run, and remove the group."""
        for name in self._names:
            self._processes.kill(name)
        cgroups.remove(self._group)
