"""Faults of the machine on which all nodes run."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from devcluster import cgroups
from devcluster.cluster import Cluster
from devcluster.processes import Launch, cpu_seconds
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
PROBE_SECONDS = 5.0
LEAST_SHARE = 0.3
"""So much of all cores is taken; a second soak leaves a third."""


def overload(aim: Aim) -> Struck:
    """Others take most of the cores, so that heartbeats are late."""
    pod = aim.worker()[1]
    agent, hogs = aim.site.main_process(pod), Hogs(aim.site.cluster)
    hogs.start()
    began, before, computed = time.monotonic(), waited(agent.pid), hogs.computed()
    time.sleep(PROBE_SECONDS)
    seconds = time.monotonic() - began
    share = (hogs.computed() - computed) / (seconds * (os.cpu_count() or 1))
    shown = (
        f"others took {share:.0%} of the cores, and the agent of {pod['metadata']['name']} waited "
        f"{waited(agent.pid) - before:.1f} s of {seconds:.0f} s for one"
    )
    if share < LEAST_SHARE:
        hogs.end()
        raise Missed(shown)
    return Struck(shown, hogs.end)


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

    def computed(self) -> float:
        """Seconds of CPU that they have used together."""
        seconds = 0.0
        for name in self._names:
            with contextlib.suppress(LookupError):  # it has ended
                seconds += cpu_seconds(self._processes.pid(name) or 0)
        return seconds

    def end(self) -> None:
        """End those that still run, and remove the group."""
        for name in self._names:
            self._processes.kill(name)
        cgroups.remove(self._group)
