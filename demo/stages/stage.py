"""What the demo needs of a cluster, beyond what kubectl gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from demo.kubectl import Kubectl
from demo.screen import Screen

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
