"""The parts of a cluster and the order in which they start."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from devcluster import archives, cgroups, machine, network, registry
from devcluster.controlplane import ControlPlane
from devcluster.errors import DevclusterError
from devcluster.images import ImageCache
from devcluster.network import Block
from devcluster.node import PAUSE_IMAGE, Node
from devcluster.processes import Processes
from devcluster.progress import Report, silent, step
from devcluster.provisioner import STORAGE_CLASS
from devcluster.registry import Record
from devcluster.waiting import wait_until
from tools.locks import locked

REPOSITORY = Path(__file__).parent.parent
REQUEST_SECONDS = 30.0
"""Time-out of one request. The API server may be slow on a busy machine."""


@dataclass(frozen=True)
class Assembly:
    """The parts of one cluster."""

    record: Record
    bin: Path

    @property
    def state(self) -> Path:
        """Folder of all files of the cluster."""
        return Path(self.record.state)

    @property
    def volumes(self) -> Path:
        """Folder with the content of the shared volumes."""
        return self.state / "volumes"

    @cached_property
    def plane(self) -> ControlPlane:
        return ControlPlane(self.record.name, Block(self.record.block), self.bin, self.state)

    @cached_property
    def processes(self) -> Processes:
        return Processes(self.state)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(Node(self.plane, index) for index in range(1, self.record.nodes + 1))

    def create(self, report: Report) -> None:
        """Create a new cluster. Returns when all its nodes are Ready."""
        began = time.monotonic()
        with step(report, "created the certificates, the network and the control groups"):
            self._prepare_machine()
        self._start_storage()
        with ThreadPoolExecutor(max_workers=4) as pool:
            runtimes = pool.map(self._boot_node, self.nodes)
            with step(report, "API server is ready"):
                self._wait_for_api()
            list(runtimes)
        with step(report, "started the controllers, the cluster DNS and the nodes"):
            self._start_controllers()
            for node in self.nodes:
                node.start_agents(self.processes)
            self._create_objects()
        with step(report, f"{self.record.nodes} nodes are Ready"):
            self._wait_for_nodes()
        report(f"cluster {self.record.name} is up after {time.monotonic() - began:.1f}s")

    def can_be_repaired(self) -> bool:
        """Whether the cluster was complete once and its namespaces and files still exist. Its
        programs can then be restarted.
        """
        namespaces = 1 + self.record.nodes
        return (
            self.record.complete
            and len(network.namespaces(self.record.name)) == namespaces
            and self.state.is_dir()
        )

    def repair(self, report: Report) -> None:
        """Start the programs of a complete cluster that do not run. Fast when all run."""
        self.start_control_plane()
        for node in self.nodes:
            if not node.is_running(self.processes) or not node.is_plugged():
                with step(report, f"started node {node.name} again"):
                    self.start_node(node)
            node.thaw()
        self._wait_for_nodes()

    def start_control_plane(self) -> None:
        """Start the programs of the control plane that do not run."""
        self._start_storage()
        self._wait_for_api()
        self._start_controllers()

    def start_node(self, node: Node) -> None:
        """Start a node again and attach the images that were loaded meanwhile."""
        node.boot(self.processes)
        cache = ImageCache.default(self.bin)
        record = registry.load(self.record.name)
        for digest in record.images if record is not None else ():
            for image in cache.stored(digest):
                cache.attach(image, [node.socket])
        node.start_agents(self.processes)

    # --- steps

    def _prepare_machine(self) -> None:
        self.volumes.mkdir(parents=True)
        self.plane.write_identities()
        network.create(self.record.name, self.plane.block, self.record.nodes)
        machine.raise_inotify_limits()
        cgroups.create(f"regroup/{self.record.name}/control-plane")

    def _start_storage(self) -> None:
        for launch in self.plane.storage():
            self.processes.start(launch)

    def _wait_for_api(self) -> None:
        def ready() -> bool:
            for name in ("etcd", "kube-apiserver"):
                self.processes.require_running(name)
            return self.plane.endpoint.api.answers("/readyz")

        wait_until(ready, 120, "A ready API server", f"See {self.processes.log('kube-apiserver')}.")

    def _boot_node(self, node: Node) -> None:
        node.prepare()
        node.start_runtime(self.processes)
        cache = ImageCache.default(self.bin)
        pause = archives.read(_pause_layout(self.bin))
        registry.add_image(self.record.name, pause.digest)
        cache.add(pause, silent)
        cache.attach(pause, [node.socket])

    def _start_controllers(self) -> None:
        for launch in self.plane.controllers(self._provisioner()):
            self.processes.start(launch)

    def _provisioner(self) -> tuple[str | Path, ...]:
        endpoint = self.plane.endpoint
        module = (
            "/usr/bin/env",
            f"PYTHONPATH={REPOSITORY}",
            sys.executable,
            "-m",
            "devcluster.provisioner",
        )
        return (*module, endpoint.address, str(endpoint.port), self.state / "pki", self.volumes)

    def _create_objects(self) -> None:
        objects = {
            **self.plane.dns_objects(),
            "/apis/storage.k8s.io/v1/storageclasses": STORAGE_CLASS,
        }
        for collection, body in objects.items():
            self.plane.endpoint.api.request("POST", collection, body, REQUEST_SECONDS)

    def _wait_for_nodes(self) -> None:
        api = self.plane.endpoint.api

        def all_ready() -> bool:
            try:
                return sum(api.nodes_ready().values()) >= self.record.nodes
            except (OSError, DevclusterError):
                return False

        hint = f"See {self.processes.log('kubelet-n1')}."
        wait_until(all_ready, 120, f"{self.record.nodes} Ready nodes", hint)
        # The API server refuses a pod whose service account does not exist yet.
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_until(lambda: api.answers(account), 60, "The default service account")


def _pause_layout(bin_folder: Path) -> Path:
    """The image of a pod's sandbox container. It contains only the program `pause`."""
    folder = bin_folder / "pause-image"
    with locked(bin_folder / "pause-image.lock", "the image pause"):
        if not (folder / "index.json").exists():
            archives.pack(
                PAUSE_IMAGE, {"pause": bin_folder / "pause"}, {}, {"Entrypoint": ["/pause"]}, folder
            )
    return folder
