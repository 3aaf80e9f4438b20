"""A kind cluster. Its nodes are Docker containers, which can be killed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.kubectl import Kubectl, call
from demo.screen import Screen
from demo.stages.stage import CLAIM, NAME, NODES, proxied, shared_claim
from demo.targets import Route

MOUNT = "/var/regroup"


@dataclass(frozen=True)
class KindStage:
    """The kind cluster `demo`. All its nodes mount one folder of this machine, which holds the
    volume.
    """

    kubectl: Kubectl
    folder: Path

    @staticmethod
    def available() -> bool:
        """Whether kind and Docker are installed."""
        return bool(shutil.which("kind") and shutil.which("docker"))

    @classmethod
    def up(cls, screen: Screen) -> KindStage:
        """Create the cluster or use the existing one. Raises DemoError."""
        folder = Path("build/demo/kind").absolute()
        volume = folder / "volume"
        volume.mkdir(parents=True, exist_ok=True)
        volume.chmod(0o1777)
        if NAME not in call(["kind", "get", "clusters"]).split():
            with screen.step(f"Creating a kind cluster of {NODES} nodes"):
                call(
                    ["kind", "create", "cluster", "--name", NAME, "--config", "-"],
                    json.dumps(config(volume)),
                    timeout=900,
                )
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(call(["kind", "get", "kubeconfig", "--name", NAME]))
        return cls(Kubectl(None, kubeconfig), volume)

    @classmethod
    def down(cls) -> None:
        """Remove the cluster if it exists."""
        if cls.available() and NAME in call(["kind", "get", "clusters"]).split():
            call(["kind", "delete", "cluster", "--name", NAME])

    def load(self, images: Mapping[str, Path], screen: Screen) -> None:
        """Load the exported archives into all nodes."""
        for path in images.values():
            with screen.step(f"Loading {path.name} into kind"):
                call(["kind", "load", "image-archive", str(path), "--name", NAME], timeout=900)

    def storage(self, namespace: str) -> list[dict[str, Any]]:
        """A static volume and the claim for it. The nodes do not share the volumes of kind's own
        storage class.
        """
        spec = {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "hostPath": {"path": MOUNT},
            "claimRef": {"namespace": namespace, "name": CLAIM},
        }
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "regroup-demo"},
            "spec": spec,
        }
        return [volume, shared_claim(storageClassName="", volumeName="regroup-demo")]

    def volume(self, namespace: str) -> Path:
        """The folder that all nodes mount."""
        del namespace
        return self.folder

    def route(self) -> AbstractContextManager[Route]:
        """Reach the pods through the API server."""
        return proxied(self.kubectl)

    def kill(self, node: str, namespace: str, pod: str) -> None:
        """Kill the node's container."""
        del namespace, pod
        call(["docker", "kill", node])

    def start(self, node: str) -> None:
        call(["docker", "start", node])


def config(volume: Path) -> dict[str, Any]:
    """The kind configuration: a control plane and workers that mount the folder."""
    mount = {"hostPath": str(volume), "containerPath": MOUNT}
    workers = [{"role": "worker", "extraMounts": [mount]} for _ in range(NODES)]
    nodes = [{"role": "control-plane"}, *workers]
    return {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}
