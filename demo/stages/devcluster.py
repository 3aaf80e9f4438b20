"""Three real nodes on this machine, without Docker. The demo cuts the power of one."""

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
        """Create the cluster or use the existing one. Raises DemoError."""
        try:
            cluster = Cluster.up(
                name, NODES, report=lambda line: screen.report(f"    {line}", "dim")
            )
        except DevclusterError as error:
            raise DemoError(str(error)) from error
        return cls(cluster, Kubectl(cluster.bin, cluster.kubeconfig))

    @staticmethod
    def down() -> None:
        """Remove the cluster if it exists. Raises DemoError."""
        try:
            remove(NAME)
        except DevclusterError as error:
            raise DemoError(str(error)) from error

    def load(self, images: Mapping[str, Path], screen: Screen) -> None:
        for name, path in images.items():
            self.cluster.load_image(
                path, name, report=lambda line: screen.report(f"    {line}", "dim")
            )

    def storage(self, namespace: str) -> list[dict[str, Any]]:
        """A claim of the default storage class, which is shared between nodes."""
        del namespace
        return [shared_claim()]

    def volume(self, namespace: str) -> Path:
        """The folder of the volume itself: devcluster's volumes are folders of this machine."""
        name = self.kubectl.read("pvc", CLAIM, "-n", namespace)["spec"]["volumeName"]
        return Path(self.kubectl.read("pv", name)["spec"]["hostPath"]["path"])

    def route(self) -> AbstractContextManager[Route]:
        """Reach the pods at their own addresses, which this machine can route to."""
        return nullcontext(Route())

    def kill(self, node: str, namespace: str, pod: str) -> None:
        """Cut the power of the node."""
        del namespace, pod
        self.cluster.node(node).kill()

    def start(self, node: str) -> None:
        self.cluster.node(node).start()
