"""What the demo needs of a cluster, beyond what kubectl gives."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from demo.kubectl import Kubectl
from demo.screen import Screen
from demo.targets import Route

NAME = "demo"
NODES = 3
CLAIM = "shared"


class Stage(Protocol):
    """A cluster to play on: how it gets images, shows a volume's content and loses a node."""

    @property
    def kubectl(self) -> Kubectl:
        """Its kubectl."""

    def load(self, images: Mapping[str, Path], screen: Screen) -> None:
        """Give images (name -> export) to all nodes."""

    def storage(self, namespace: str) -> list[dict[str, Any]]:
        """The objects that make the claim `shared`, readable and writable from all nodes."""

    def volume(self, namespace: str) -> Path:
        """A folder of this machine that shows what is on the claim's volume now."""

    def route(self) -> AbstractContextManager[Route]:
        """How this machine reaches pods, while it is entered."""

    def kill(self, node: str, namespace: str, pod: str) -> None:
        """Make the node that runs `pod` vanish without a word, as far as this kind of cluster can."""

    def start(self, node: str) -> None:
        """Bring it back."""


def shared_claim(**spec: Any) -> dict[str, Any]:
    """The claim `shared`, by default of the cluster's default storage class."""
    resources = {"requests": {"storage": "2Gi"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": resources, **spec},
    }


@contextmanager
def proxied(kubectl: Kubectl) -> Iterator[Route]:
    """Reach pods through the API server, for clusters whose pod network is not routed to this machine."""
    command = kubectl.command("proxy", "--port=0")
    with subprocess.Popen(command, env=kubectl.environment(), stdout=subprocess.PIPE, text=True) as proxy:
        said = proxy.stdout.readline() if proxy.stdout else ""
        try:
            yield Route(said.rpartition(" ")[2].strip())
        finally:
            proxy.terminate()
