"""The interface of the demo to a cluster, beside kubectl."""

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
    """A cluster for the demo: how it loads images, shows a volume's content and loses a node."""

    @property
    def kubectl(self) -> Kubectl:
        """The cluster's kubectl."""

    def load(self, images: Mapping[str, Path], screen: Screen) -> None:
        """Make images (name -> export) available on all nodes."""

    def storage(self, namespace: str) -> list[dict[str, Any]]:
        """The objects that provide the claim `shared`, readable and writable from all nodes."""

    def volume(self, namespace: str) -> Path:
        """A folder of this machine with the current content of the claim's volume."""

    def route(self) -> AbstractContextManager[Route]:
        """How this machine reaches pods while the block runs."""

    def kill(self, node: str, namespace: str, pod: str) -> None:
        """Make the node that runs `pod` fail without a shutdown, as far as this kind of cluster
        can.
        """

    def start(self, node: str) -> None:
        """Start the node again."""


def shared_claim(**spec: Any) -> dict[str, Any]:
    """The claim `shared`. By default, it uses the cluster's default storage class."""
    resources = {"requests": {"storage": "2Gi"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": resources, **spec},
    }


@contextmanager
def proxied(kubectl: Kubectl) -> Iterator[Route]:
    """Reach pods through the API server. For clusters whose pod network this machine cannot route
    to.
    """
    command = kubectl.command("proxy", "--port=0")
    with subprocess.Popen(
        command, env=kubectl.environment(), stdout=subprocess.PIPE, text=True
    ) as proxy:
        line = proxy.stdout.readline() if proxy.stdout else ""
        try:
            yield Route(line.rpartition(" ")[2].strip())
        finally:
            proxy.terminate()
