"""Three real nodes on this machine, without Docker; killing one pulls its plug."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.errors import DemoError
from demo.kubectl import Kubectl
from demo.screen import Screen
from demo.stages.stage import CLAIM, NAME, NODES, shared_claim
from demo.targets import Route
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.removal import remove


@dataclass(frozen=True)
class DevclusterStage:
    """A devcluster, by default the one named `demo`."""

    cluster: Cluster
    kubectl: Kubectl

    @classmethod
    def up(cls, screen: Screen, name: str = NAME) -> DevclusterStage:
        """The cluster, made or found. Raises DemoError."""
        try:
            cluster = Cluster.up(name, NODES, say=lambda line: screen.tell(f"    {line}", "dim"))
        except DevclusterError as error:
            raise DemoError(str(error)) from error
        return cls(cluster, Kubectl(cluster.bin, cluster.kubeconfig))

    @staticmethod
    def down() -> None:
        """Remove it, if it is there. Raises DemoError."""
        try:
            remove(NAME)
        except DevclusterError as error:
            raise DemoError(str(error)) from error

    def load(self, images: Mapping[str, Path], screen: Screen) -> None:
        """Attach the images to all nodes."""
        for name, path in images.items():
            self.cluster.load_image(path, name, say=lambda line: screen.tell(f"    {line}", "dim"))

    def storage(self, namespace: str) -> list[dict[str, Any]]:
        """A claim of the default storage class, which is shared between nodes."""
        del namespace
        return [shared_claim()]

    def volume(self, namespace: str) -> Path:
        """The folder itself: devcluster's volumes are folders of this machine."""
        name = self.kubectl.read("pvc", CLAIM, "-n", namespace)["spec"]["volumeName"]
        return Path(self.kubectl.read("pv", name)["spec"]["hostPath"]["path"])

    def route(self) -> AbstractContextManager[Route]:
        """The pods' own addresses are routed to this machine."""
        return nullcontext(Route())

    def kill(self, node: str, namespace: str, pod: str) -> None:
        """Pull the plug."""
        del namespace, pod
        self.cluster.node(node).kill()

    def start(self, node: str) -> None:
        """Power it on."""
        self.cluster.node(node).start()
