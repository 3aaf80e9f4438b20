"""Keeps the list of pods that Prometheus scrapes: operator, coordinators and workers.

Debian builds Prometheus without service discovery through Kubernetes. This module therefore watches
the pods and updates a file of targets. Prometheus reads the file again after each change.
"""

from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from demo.kubectl import Kubectl

Json = dict[str, Any]
PORTS = ("metrics", "status")
"""Names of the container ports with metrics: `metrics` of workers and operator, `status` of
coordinators.
"""


@dataclass(frozen=True)
class Route:
    """The way to a pod: its own address, or a proxy of the API server."""

    proxy: str | None = None
    """host:port of `kubectl proxy`."""

    def target(self, pod: Json, port: Json) -> Json:
        """The pod's port as a target for Prometheus' file discovery."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        labels = {"pod": name, "namespace": namespace}
        if self.proxy is None:
            address = f"{pod['status']['podIP']}:{port['containerPort']}"
            return {"targets": [address], "labels": labels}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:{port['containerPort']}/proxy/metrics"
        return {"targets": [self.proxy], "labels": {**labels, "__metrics_path__": path}}


def targets(pods: list[Json], route: Route) -> list[Json]:
    """The ports with metrics of our running pods, as targets."""
    found = []
    for pod in pods:
        if ours(pod) and pod["status"].get("phase") == "Running" and pod["status"].get("podIP"):
            ports = (port for one in pod["spec"]["containers"] for port in one.get("ports", ()))
            found += [route.target(pod, port) for port in ports if port.get("name") in PORTS]
    return found


def ours(pod: Json) -> bool:
    """Whether the pod is the operator, a coordinator or a worker."""
    labels = pod["metadata"].get("labels", {})
    return "regroup.dev/role" in labels or labels.get("app.kubernetes.io/part-of") == "regroup"


class Discovery:
    """Keeps the file of targets up to date while the block runs."""

    def __init__(self, kubectl: Kubectl, file: Path, route: Route) -> None:
        self._command = kubectl.command(
            "get", "pods", "-A", "--watch", "--output-watch-events", "-o", "json"
        )
        self._environment = kubectl.environment()
        self._file, self._route = file, route
        self._pods: dict[str, Json] = {}
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Discovery:
        self._write()
        self._process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._process:
            self._process.terminate()
            self._thread.join()
            self._process.wait()
            if self._process.stdout:
                self._process.stdout.close()

    def _follow(self) -> None:
        if self._process and self._process.stdout:
            for line in self._process.stdout:
                event = json.loads(line)
                pod = event["object"]
                if event["type"] == "DELETED":
                    self._pods.pop(pod["metadata"]["uid"], None)
                else:
                    self._pods[pod["metadata"]["uid"]] = pod
                self._write()

    def _write(self) -> None:
        unfinished = self._file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(targets(list(self._pods.values()), self._route)))
        unfinished.rename(self._file)
