"""A cluster and its operations, for tests, the demo and the command line.

Example: `cluster = Cluster.up("demo", nodes=3)`, `cluster.load_image(Path("build/trainer.tar"))`,
`cluster.node("n2").kill()`, `cluster.down()`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import (
    archives,
    binaries,
    caches,
    controlplane,
    network,
    packages,
    policies,
    registry,
    removal,
    volumes,
)
from devcluster.assembly import Assembly
from devcluster.controlplane import ControlPlane
from devcluster.errors import DevclusterError, NoSuchClusterError, NoSuchNodeError
from devcluster.images import ImageCache
from devcluster.machine import preflight
from devcluster.node import Node
from devcluster.processes import Processes, run
from devcluster.progress import Report, silent, step
from devcluster.registry import Record


@dataclass(frozen=True)
class NodeHandle:
    """The operations on one node of a running cluster."""

    node: Node
    assembly: Assembly

    @property
    def name(self) -> str:
        return self.node.name

    def kill(self) -> None:
        """Cut the power: take the link down, then SIGKILL all processes. Nothing
        ends gracefully.
        """
        self.node.kill()

    def start(self) -> None:
        """Start the node again. Images that were loaded meanwhile are available."""
        self.assembly.start_node(self.node)

    def freeze(self) -> None:
        """Stop all its processes, like SIGSTOP for a whole machine."""
        self.node.freeze()

    def thaw(self) -> None:
        """Undo `freeze`."""
        self.node.thaw()

    def partition(self) -> None:
        """Disconnect the network. The pods keep running."""
        self.node.partition()

    def heal(self) -> None:
        """Undo `partition`."""
        self.node.heal()


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up or was up."""

    assembly: Assembly

    # --- start and end

    @classmethod
    def up(cls, name: str, nodes: int = 3, report: Report = silent) -> Cluster:
        """The cluster of this name with all its nodes Ready, existing or new.

        Killed nodes of an existing cluster are started again. The remains of an interrupted `up`
        are removed first.
        """
        registry.validated_name(name)
        if not 1 <= nodes <= network.MAX_NODES:
            raise DevclusterError(f"nodes is {nodes}: a devcluster has 1 to {network.MAX_NODES}.")
        preflight()
        packages.ensure(packages.NEEDED, report)
        bin_folder = binaries.build(report)
        with registry.lock_cluster(name, report):
            found = registry.load(name)
            if found is not None and found.state != str(caches.cluster_state(name)):
                raise DevclusterError(
                    f"A cluster {name} with its files in {found.state} exists: choose another "
                    "--name."
                )
            if found is not None:
                assembly = Assembly(found, Path(found.bin or bin_folder))
                if assembly.can_be_repaired():
                    _check_node_count(found, nodes)
                    assembly.repair(report)
                    return cls(assembly)
            if found is not None or network.namespaces(name) or caches.cluster_state(name).exists():
                with step(report, f"removed the remains of an earlier cluster {name}"):
                    removal.remove_held(name)
            assembly = Assembly(registry.reserve(name, nodes, bin_folder), bin_folder)
            assembly.create(report)
            return cls(Assembly(registry.mark_complete(name), bin_folder))

    @classmethod
    def find(cls, name: str) -> Cluster:
        """The cluster of this name. Raises NoSuchClusterError."""
        record = registry.load(name)
        if record is None:
            known = ", ".join(record.name for record in registry.load_all()) or "none"
            raise NoSuchClusterError(
                f"There is no cluster {name!r} (known: {known}): create it "
                "with `python -m devcluster up`."
            )
        return cls(Assembly(record, Path(record.bin or binaries.folder())))

    def stop_api_server(self) -> None:
        """SIGKILL the API server. Nodes and pods keep running."""
        self.processes.kill("kube-apiserver")

    def start_api_server(self) -> None:
        """Undo `stop_api_server`. Returns when the API server is ready."""
        self.assembly.start_control_plane()

    def down(self) -> None:
        """Remove the cluster and all its traces on this machine."""
        removal.remove(self.name)

    # --- parts

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def record(self) -> Record:
        return self.assembly.record

    @property
    def bin(self) -> Path:
        """Folder of kubectl, helm, kube-apiserver and the other programs."""
        return self.assembly.bin

    @property
    def state(self) -> Path:
        """Folder of all files of the cluster."""
        return self.assembly.state

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig for use on this machine."""
        return self.state / "admin.kubeconfig"

    @property
    def volumes(self) -> Path:
        """Folder of this machine with the content of the shared volumes."""
        return self.assembly.volumes

    @property
    def plane(self) -> ControlPlane:
        return self.assembly.plane

    @property
    def processes(self) -> Processes:
        return self.assembly.processes

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.assembly.nodes

    def node(self, name: str) -> NodeHandle:
        """A node of the cluster. Raises NoSuchNodeError."""
        for node in self.nodes:
            if node.name == name:
                return NodeHandle(node, self.assembly)
        raise NoSuchNodeError(
            f"Cluster {self.name} has no node {name!r}: it has "
            f"{', '.join(n.name for n in self.nodes)}."
        )

    # --- operations

    def kubectl(self, *arguments: str | Path, stdin: str = "") -> str:
        """Run kubectl as administrator and return its output. Raises CommandFailedError."""
        return run([self.bin / "kubectl", "--kubeconfig", self.kubeconfig, *arguments], stdin=stdin)

    def load_image(self, source: Path, name: str | None = None, report: Report = silent) -> str:
        """Load an image (docker-archive, OCI archive or layout) onto all running nodes. Returns its
        full name.
        """
        image = archives.read(source, name)
        cache = ImageCache.default(self.bin)
        registry.add_image(
            self.name, image.digest
        )  # before the layers exist, so that no other process deletes them
        cache.add(image, report)
        running = [
            node.socket
            for node in self.nodes
            if self.processes.pid(f"containerd-{node.name}") is not None
        ]
        with step(report, f"attached {image.name} to {len(running)} nodes"):
            cache.attach(image, running)
        return image.name

    def add_volume(self, name: str, size: str) -> None:
        """Add a volume with an enforced size. A claim binds to it by `storageClassName: <name>`."""
        volume = volumes.limited(name, size, self.volumes / f"limited-{name}")
        self.kubectl("apply", "-f", "-", stdin=json.dumps(volume))

    def enforce_policies(self, report: Report = silent) -> None:
        """Enforce NetworkPolicies on all nodes. Call it again after a node was started."""
        policies.enforce(self.nodes, self.processes, report)

    def status(self) -> dict[str, Any]:
        """The nodes and components of the cluster, with process ids and addresses."""
        try:
            ready = self.plane.endpoint.api.nodes_ready()
        except (OSError, DevclusterError):
            ready = {}
        pids = {name: self.processes.pid(name) for name in self.processes.names()}
        return {
            "name": self.name,
            "complete": self.record.complete,
            "kubeconfig": str(self.kubeconfig),
            "server": self.plane.endpoint.url,
            "network": str(self.plane.block.network),
            "controlPlane": {name: pids.get(name) for name in controlplane.COMPONENTS},
            "nodes": [
                {
                    "name": node.name,
                    "address": node.address,
                    "pods": self.plane.block.node_pods(node.index),
                    "ready": ready.get(node.name, False),
                    "link": node.is_plugged(),
                    "frozen": node.is_frozen(),
                    "components": {name: pids.get(name) for name in node.components},
                }
                for node in self.nodes
            ],
        }


def _check_node_count(record: Record, nodes: int) -> None:
    if nodes != record.nodes:
        raise DevclusterError(
            f"Cluster {record.name} is up with {record.nodes} nodes, not {nodes}: take it down "
            "first "
            f"(`python -m devcluster down --name {record.name}`), or choose another name."
        )
