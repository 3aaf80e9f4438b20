"""Removes clusters. It follows the state of the kernel, so it also cleans up after an interrupted
`up`.
"""

from __future__ import annotations

from pathlib import Path

from devcluster import caches, cgroups, mounts, network, processes, registry
from devcluster.controlplane import ControlPlane
from devcluster.network import Block
from devcluster.node import Node
from devcluster.processes import Processes
from devcluster.waiting import wait_until


def remove(name: str) -> None:
    """Remove a cluster with all its processes, mounts, namespaces, links, routes, control groups
    and files.
    """
    registry.validated_name(name)
    with registry.lock_cluster(name):
        remove_held(name)


def remove_held(name: str) -> None:
    """Like `remove`, for a caller that holds the cluster's lock."""
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
    """End the processes in the cluster's control groups, and started processes that have not
    entered one yet.
    """

    def ended() -> bool:
        cgroups.kill(group)
        marked_processes = list(started.marked_processes())
        for pid in marked_processes:
            processes.kill(pid)
        return not marked_processes and not cgroups.processes(group)

    wait_until(ended, 30, f"The end of all processes of {group}")
