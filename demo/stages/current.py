"""The cluster of the caller's kubeconfig context. The demo uses it only on request.

The demo cannot cut the power of its nodes. It cordons the node and deletes the pod by force
instead.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.kubectl import Kubectl, call
from demo.screen import Screen
from demo.stages.stage import CLAIM, proxied, shared_claim
from demo.targets import Route

READER = "volume-reader"
MIRROR = Path("build/demo/volume")


@dataclass(frozen=True)
class CurrentStage:
    """The caller's cluster. It needs storage for ReadWriteMany claims, and its nodes pull the
    images.
    """

    kubectl: Kubectl

    @classmethod
    def up(cls, screen: Screen) -> CurrentStage:
        """Use the existing cluster and report its context."""
        kubectl = Kubectl(None, None)
        screen.report(
            f"Using the context {kubectl('config', 'current-context').strip()}. "
            "The demo cannot cut the power of its nodes."
        )
        screen.report(
            "It deletes the pod by force instead. The nodes must be able to pull the images."
        )
        return cls(kubectl)

    def load(self, images: Mapping[str, Path], screen: Screen) -> None:
        """Do nothing: the nodes pull the images."""
        screen.report(f"The cluster pulls {', '.join(images)}.")

    def storage(self, namespace: str) -> list[dict[str, Any]]:
        """A claim of the default storage class."""
        del namespace
        return [shared_claim()]

    def volume(self, namespace: str) -> Path:
        """A copy of the volume without the checkpoints' shards. A pod that mounts the claim
        provides it.
        """
        self.kubectl.apply(reader(), namespace=namespace)
        self.kubectl(
            "wait", "-n", namespace, f"pod/{READER}", "--for=condition=Ready", "--timeout=100s"
        )
        MIRROR.mkdir(parents=True, exist_ok=True)
        pack = (
            f"kubectl exec -n {namespace} {READER} -- tar --create --format=posix "
            "--exclude=*.distcp -C /volume ."
        )
        call(
            ["sh", "-c", f"{pack} | tar --extract -C {shlex.quote(str(MIRROR))}"],
            env=self.kubectl.environment(),
        )
        return MIRROR

    def route(self) -> AbstractContextManager[Route]:
        """Reach the pods through the API server."""
        return proxied(self.kubectl)

    def kill(self, node: str, namespace: str, pod: str) -> None:
        """Cordon the node and delete the pod by force."""
        self.kubectl("cordon", node)
        self.kubectl(
            "delete", "pod", pod, "-n", namespace, "--grace-period=0", "--force", "--wait=false"
        )

    def start(self, node: str) -> None:
        """Uncordon the node."""
        self.kubectl("uncordon", node)


def reader() -> dict[str, Any]:
    """A pod that only mounts the claim."""
    container = {
        "name": "reader",
        "image": "debian:stable-slim",
        "command": ["sleep", "infinity"],
        "volumeMounts": [{"name": "volume", "mountPath": "/volume", "readOnly": True}],
    }
    volume = {"name": "volume", "persistentVolumeClaim": {"claimName": CLAIM}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": READER}, "spec": spec}
