"""A cluster: bring it up, take it down, and everything in between.

Tests and the demo use it so: `cluster = Cluster.up("demo", nodes=3)`, `cluster.load_image(Path("build/trainer.tar"))`,
`cluster.node("n2").kill()`, `cluster.down()`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import archives, binaries, caches, controlplane, network, packages, registry, removal, volumes
from devcluster.assembly import Assembly
from devcluster.controlplane import ControlPlane
from devcluster.errors import DevclusterError, NoSuchClusterError, NoSuchNodeError
from devcluster.images import ImageCache
from devcluster.machine import preflight
from devcluster.node import Node
from devcluster.processes import Processes, run
from devcluster.progress import Say, silent, step
from devcluster.registry import Record


@dataclass(frozen=True)
class NodeHandle:
    """What can be done to one node of a running cluster."""

    node: Node
    assembly: Assembly

    @property
    def name(self) -> str:
        """Its name in Kubernetes."""
        return self.node.name

    def kill(self) -> None:
        """Pull the plug: link down, then SIGKILL for all that runs on it; nothing graceful."""
        self.node.kill()

    def start(self) -> None:
        """Power it on again; images that were loaded meanwhile are there."""
        self.assembly.start_node(self.node)

    def freeze(self) -> None:
        """Stop everything on it (SIGSTOP for a whole machine)."""
        self.node.freeze()

    def thaw(self) -> None:
        """Undo `freeze`."""
        self.node.thaw()

    def partition(self) -> None:
        """Pull the network cable; its pods run on."""
        self.node.partition()

    def heal(self) -> None:
        """Undo `partition`."""
        self.node.heal()


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up, or was."""

    assembly: Assembly

    # --- life

    @classmethod
    def up(cls, name: str, nodes: int = 3, say: Say = silent) -> Cluster:
        """A cluster of that name with all its nodes Ready: the one that is there, or a new one.

        A killed node of a cluster that is there is started again; what a half-killed `up` left is removed first.
        """
        registry.validated_name(name)
        if not 1 <= nodes <= network.MAX_NODES:
            raise DevclusterError(f"nodes is {nodes}: a devcluster has 1 to {network.MAX_NODES}.")
        preflight()
        packages.ensure(packages.NEEDED, say)
        bin_folder = binaries.build(say)
        with registry.alone(name, say):
            found = registry.load(name)
            if found is not None and found.state != str(caches.cluster_state(name)):
                raise DevclusterError(
                    f"A cluster {name} with its files in {found.state} is there: choose another --name."
                )
            if found is not None:
                assembly = Assembly(found, Path(found.bin or bin_folder))
                if assembly.can_be_repaired():
                    _must_have(found, nodes)
                    assembly.repair(say)
                    return cls(assembly)
            if found is not None or network.namespaces(name) or caches.cluster_state(name).exists():
                with step(say, f"removed what was left of an earlier cluster {name}"):
                    removal.remove_held(name)
            assembly = Assembly(registry.claim(name, nodes, bin_folder), bin_folder)
            assembly.create(say)
            return cls(Assembly(registry.complete(name), bin_folder))

    @classmethod
    def find(cls, name: str) -> Cluster:
        """The cluster of that name; raises NoSuchClusterError."""
        record = registry.load(name)
        if record is None:
            known = ", ".join(record.name for record in registry.load_all()) or "none"
            raise NoSuchClusterError(
                f"There is no cluster {name!r} (known: {known}): `python -m devcluster up` makes one."
            )
        return cls(Assembly(record, Path(record.bin or binaries.folder())))

    def stop_api_server(self) -> None:
        """SIGKILL the API server; nodes and pods run on, and nobody hears of them."""
        self.processes.kill("kube-apiserver")

    def start_api_server(self) -> None:
        """Undo `stop_api_server`; returns when it is ready."""
        self.assembly.start_control_plane()

    def down(self) -> None:
        """Remove the cluster and all that it left on this machine."""
        removal.remove(self.name)

    # --- parts

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.name

    @property
    def record(self) -> Record:
        """What is needed to find it again."""
        return self.assembly.record

    @property
    def bin(self) -> Path:
        """Folder of kubectl, helm, kube-apiserver and all other programs."""
        return self.assembly.bin

    @property
    def state(self) -> Path:
        """Folder with everything it writes."""
        return self.assembly.state

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, usable from this machine."""
        return self.state / "admin.kubeconfig"

    @property
    def volumes(self) -> Path:
        """Folder on this machine that holds the content of the shared volumes."""
        return self.assembly.volumes

    @property
    def plane(self) -> ControlPlane:
        """Its control plane."""
        return self.assembly.plane

    @property
    def processes(self) -> Processes:
        """Its programs."""
        return self.assembly.processes

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes."""
        return self.assembly.nodes

    def node(self, name: str) -> NodeHandle:
        """One of its nodes; raises NoSuchNodeError."""
        for node in self.nodes:
            if node.name == name:
                return NodeHandle(node, self.assembly)
        raise NoSuchNodeError(
            f"Cluster {self.name} has no node {name!r}: it has {', '.join(n.name for n in self.nodes)}."
        )

    # --- use

    def kubectl(self, *arguments: str | Path, stdin: str = "") -> str:
        """Run kubectl with all rights and return what it prints; raises CommandFailedError."""
        return run([self.bin / "kubectl", "--kubeconfig", self.kubeconfig, *arguments], stdin=stdin)

    def load_image(self, source: Path, name: str | None = None, say: Say = silent) -> str:
        """Give an image (docker-archive, OCI archive or layout) to all nodes that run; returns its full name."""
        image = archives.read(source, name)
        cache = ImageCache.default(self.bin)
        registry.add_image(self.name, image.digest)  # before the layers are there, lest another process prunes them
        cache.add(image, say)
        running = [node.socket for node in self.nodes if self.processes.pid(f"containerd-{node.name}") is not None]
        with step(say, f"attached {image.name} to {len(running)} nodes"):
            cache.attach(image, running)
        return image.name

    def add_volume(self, name: str, size: str) -> None:
        """A volume with a size that is enforced; a claim binds to it by `storageClassName: <name>`."""
        volume = volumes.limited(name, size, self.volumes / f"limited-{name}")
        self.kubectl("apply", "-f", "-", stdin=json.dumps(volume))

    def status(self) -> dict[str, Any]:
        """Nodes, components, process ids and addresses."""
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


def _must_have(record: Record, nodes: int) -> None:
    if nodes != record.nodes:
        raise DevclusterError(
            f"Cluster {record.name} is up with {record.nodes} nodes, not {nodes}: take it down first "
            f"(`python -m devcluster down --name {record.name}`), or choose another name."
        )
