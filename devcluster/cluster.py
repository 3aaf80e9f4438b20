"""A cluster: bring it up, take it down, and everything in between.

Tests and the demo use it so: `cluster = Cluster.up("demo", nodes=3)`, `cluster.load_image(Path("build/trainer.tar"))`,
`cluster.node("n2").kill()`, `cluster.down()`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from devcluster import (
    archives,
    binaries,
    caches,
    cgroups,
    controlplane,
    mounts,
    network,
    packages,
    processes,
    registry,
    volumes,
)
from devcluster.controlplane import ControlPlane
from devcluster.errors import DevclusterError, NoSuchClusterError, NoSuchNodeError, UnsupportedMachineError
from devcluster.images import ImageCache
from devcluster.locks import locked
from devcluster.network import Block
from devcluster.node import PAUSE_IMAGE, Node
from devcluster.processes import Processes, run
from devcluster.progress import Say, silent, step
from devcluster.provisioner import STORAGE_CLASS
from devcluster.registry import Record
from devcluster.waiting import wait_until

REPOSITORY = Path(__file__).parent.parent


def preflight() -> None:
    """Raise UnsupportedMachineError, with what to do, unless this machine can carry a cluster."""
    if os.geteuid() != 0:
        raise UnsupportedMachineError("devcluster makes network namespaces and mounts: run it as root (`sudo -E ...`).")
    cgroups.check()
    if packages.missing({"ip": "iproute2", "unshare": "util-linux"}):
        return  # to be installed
    try:
        network.check()
    except DevclusterError as refused:
        raise UnsupportedMachineError(
            f"Network namespaces can't be made here ({refused}): "
            "devcluster needs a machine, or a privileged container, with CAP_NET_ADMIN and CAP_SYS_ADMIN."
        ) from refused


@dataclass(frozen=True)
class NodeHandle:
    """What can be done to one node of a running cluster."""

    node: Node
    processes: Processes

    @property
    def name(self) -> str:
        """Its name in Kubernetes."""
        return self.node.name

    def kill(self) -> None:
        """Pull the plug: link down, then SIGKILL for all that runs on it; nothing graceful."""
        self.node.kill()

    def start(self) -> None:
        """Power it on again; images that were loaded meanwhile are there."""
        self.node.boot(self.processes)
        cache = ImageCache.default(self.node.plane.bin)
        record = registry.load(self.node.plane.cluster)
        for digest in record.images if record is not None else ():
            for image in cache.stored(digest):
                cache.attach(image, [self.node.socket])
        self.node.start_agents(self.processes)

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

    record: Record
    bin: Path
    """Folder of kubectl, helm, kube-apiserver and all other programs."""

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
            if found is not None and found.complete:
                cluster = cls(found, Path(found.bin or bin_folder))
                if cluster._can_be_completed():
                    return cluster._completed(nodes, say)
            if found is not None or network.namespaces(name) or caches.cluster_state(name).exists():
                with step(say, f"removed what was left of an earlier cluster {name}"):
                    _remove(name)
            cluster = cls(registry.claim(name, nodes, bin_folder), bin_folder)
            cluster._create(say)
            return cls(cluster._mark_complete(), bin_folder)

    @classmethod
    def find(cls, name: str) -> Cluster:
        """The cluster of that name; raises NoSuchClusterError."""
        record = registry.load(name)
        if record is None:
            known = ", ".join(record.name for record in registry.load_all()) or "none"
            raise NoSuchClusterError(
                f"There is no cluster {name!r} (known: {known}): `python -m devcluster up` makes one."
            )
        return cls(record, Path(record.bin or binaries.folder()))

    def down(self) -> None:
        """Remove the cluster and all that it left on this machine."""
        remove(self.name)

    # --- parts

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.name

    @property
    def state(self) -> Path:
        """Folder with everything it writes."""
        return Path(self.record.state)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, usable from this machine."""
        return self.state / "admin.kubeconfig"

    @property
    def volumes(self) -> Path:
        """Folder on this machine that holds the content of the shared volumes."""
        return self.state / "volumes"

    @cached_property
    def plane(self) -> ControlPlane:
        """Its control plane."""
        return ControlPlane(self.name, Block(self.record.block), self.bin, self.state)

    @cached_property
    def processes(self) -> Processes:
        """Its programs."""
        return Processes(self.state)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Its nodes."""
        return tuple(Node(self.plane, index) for index in range(1, self.record.nodes + 1))

    def node(self, name: str) -> NodeHandle:
        """One of its nodes; raises NoSuchNodeError."""
        for node in self.nodes:
            if node.name == name:
                return NodeHandle(node, self.processes)
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

    # --- creation, step by step

    def _create(self, say: Say) -> None:
        began = time.monotonic()
        self.state.mkdir(parents=True, exist_ok=True)
        with step(say, "made the certificates, the network and the control groups"):
            self.plane.write_identities()
            network.create(self.name, self.plane.block, self.record.nodes)
            _raise_inotify_limits()
            cgroups.create(f"regroup/{self.name}/control-plane")
        for launch in self.plane.storage():
            self.processes.start(launch)
        with ThreadPoolExecutor(max_workers=4) as pool:
            runtimes = pool.map(self._boot_runtime, self.nodes)
            with step(say, "API server is ready"):
                self._wait_for_api()
            list(runtimes)
        with step(say, "started the controllers, the cluster DNS and the nodes"):
            for launch in self.plane.controllers(self._provisioner()):
                self.processes.start(launch)
            for node in self.nodes:
                node.start_agents(self.processes)
            self._create_objects()
        with step(say, f"{self.record.nodes} nodes are Ready"):
            self._wait_for_nodes()
        say(f"cluster {self.name} is up after {time.monotonic() - began:.1f}s: KUBECONFIG={self.kubeconfig}")

    def _boot_runtime(self, node: Node) -> None:
        node.prepare()
        node.start_runtime(self.processes)
        cache = ImageCache.default(self.bin)
        pause = archives.read(_pause_layout(self.bin))
        registry.add_image(self.name, pause.digest)
        cache.add(pause, silent)
        cache.attach(pause, [node.socket])

    def _provisioner(self) -> tuple[str | Path, ...]:
        endpoint = self.plane.endpoint
        module = (sys.executable, "-m", "devcluster.provisioner")
        self.volumes.mkdir(exist_ok=True)
        python_path = ("/usr/bin/env", f"PYTHONPATH={REPOSITORY}")
        return (*python_path, *module, endpoint.address, str(endpoint.port), self.state / "pki", self.volumes)

    def _create_objects(self) -> None:
        objects = {**self.plane.dns_objects(), "/apis/storage.k8s.io/v1/storageclasses": STORAGE_CLASS}
        for collection, body in objects.items():
            self.plane.endpoint.api.request("POST", collection, body)

    def _wait_for_api(self) -> None:
        def ready() -> bool:
            for name in ("etcd", "kube-apiserver"):
                self.processes.must_run(name)
            return self.plane.endpoint.api.answers("/readyz")

        wait_until(ready, 120, "A ready API server", f"See {self.processes.log('kube-apiserver')}.")

    def _wait_for_nodes(self) -> None:
        api = self.plane.endpoint.api

        def all_ready() -> bool:
            return sum(api.nodes_ready().values()) >= self.record.nodes

        hint = f"See {self.processes.log('kubelet-n1')}."
        wait_until(all_ready, 120, f"{self.record.nodes} Ready nodes", hint)
        # A pod that is made before its service account is refused.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_until(lambda: api.answers(account), 30, "The default service account")

    def _mark_complete(self) -> Record:
        record = registry.load(self.name) or self.record
        registry.save(replace(record, complete=True))
        return replace(record, complete=True)

    # --- repair

    def _can_be_completed(self) -> bool:
        """Whether the control plane runs; nodes can be started again."""
        runs = all(self.processes.pid(name) is not None for name in controlplane.COMPONENTS)
        return runs and self.plane.endpoint.api.answers("/readyz")

    def _completed(self, nodes: int, say: Say) -> Cluster:
        if nodes != self.record.nodes:
            raise DevclusterError(
                f"Cluster {self.name} is up with {self.record.nodes} nodes, not {nodes}: take it down first "
                f"(`python -m devcluster down --name {self.name}`), or choose another name."
            )
        for node in self.nodes:
            if not node.is_running(self.processes) or not node.is_plugged():
                with step(say, f"started node {node.name} again"):
                    self.node(node.name).start()
            node.thaw()
        self._wait_for_nodes()
        return self


def remove(name: str) -> None:
    """Take a cluster down: no process, mount, namespace, link, route, control group or file of it stays.

    Works from what the kernel shows, so it finds the leftovers of an `up` that was killed half-way, too.
    """
    registry.validated_name(name)
    with registry.alone(name):
        _remove(name)


def _remove(name: str) -> None:
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


def _pause_layout(bin_folder: Path) -> Path:
    """The image that holds a pod's namespaces, made from nothing but the program `pause`."""
    folder = bin_folder / "pause-image"
    with locked(bin_folder / "pause-image.lock", "the image pause"):
        if not (folder / "index.json").exists():
            archives.pack(PAUSE_IMAGE, {"pause": bin_folder / "pause"}, {}, {"Entrypoint": ["/pause"]}, folder)
    return folder


def _raise_inotify_limits() -> None:
    """Every kubelet and containerd watches many files; the kernel's default is meant for one machine, not for five."""
    for name, least in (("max_user_instances", 8192), ("max_user_watches", 524288)):
        setting = Path("/proc/sys/fs/inotify") / name
        if int(setting.read_text()) < least:
            setting.write_text(str(least))
