"""Takes clusters down. Goes by what the kernel shows, so it clears up after an `up` that was killed half-way, too."""

from __future__ import annotations

from pathlib import Path

from devcluster import caches, cgroups, mounts, network, processes, registry
from devcluster.controlplane import ControlPlane
from devcluster.network import Block
from devcluster.node import Node
from devcluster.processes import Processes
from devcluster.waiting import wait_until


def remove(name: str) -> None:
    """Take a cluster down: no process, mount, namespace, link, route, control group or file of it stays."""
    registry.validated_name(name)
    with registry.alone(name):
        remove_held(name)


def remove_held(name: str) -> None:
    """As `remove`, for who holds the cluster already."""
    record = registry.load(name)
    state = Path(record.state) if record is not None else caches.cluster_state(name)
    group = f"regroup/{name}"
    _end_processes(group, Processes(state))
    plane = ControlPlane(name, Block(record.block if record else 0), state, state)
    for folder in state.glob("n[0-9]*"):
        node = Node(plane, int(folder.name.removeprefix("n")))
        node.forget_memory()
        node.forget_machine_wide()
    network.remove(name)
    cgroups.remove(group)
    cgroups.remove_if_empty("regroup")
    mounts.delete(state)
    registry.forget(name)


def _end_processes(group: str, started: Processes) -> None:
    """End what is in the cluster's control groups, and what was started but had not entered one yet."""

    def ended() -> bool:
        cgroups.kill(group)
        strays = list(started.strays())
        for pid in strays:
            processes.kill(pid)
        return not strays and not cgroups.processes(group)

    wait_until(ended, 30, f"The end of all processes of {group}")
