"""Keeps the lists of targets that service discovery through Kubernetes would find.

Debian builds Prometheus without that discovery. This module therefore watches the pods and updates
a file for each role: `pod.json` and `endpoints.json`. Prometheus reads them again after each
change. As with the real discovery, they have the ports of all pods: the rules of the monitors
choose.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from demo.kubectl import Kubectl
from demo.monitors import META, sanitized

Json = dict[str, Any]
Labels = dict[str, str]


@dataclass(frozen=True)
class Route:
    """The way to a pod: its own address, or a proxy of the API server."""

    proxy: str | None = None
    """host:port of `kubectl proxy`."""

    def target(self, pod: Json, port: Json, labels: Labels) -> Json:
        """The pod's port, with these labels, as a target for Prometheus' file discovery."""
        address = f"{pod['status']['podIP']}:{port['containerPort']}"
        if self.proxy is None:
            return {"targets": [address], "labels": labels}
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:{port['containerPort']}/proxy/metrics"
        # All are behind one address. What tells them apart is what it would be without the proxy.
        apart = {"instance": address, "__metrics_path__": path}
        return {"targets": [self.proxy], "labels": {**labels, **apart}}


def pod_targets(pods: list[Json], route: Route) -> list[Json]:
    """What the role `pod` finds."""
    return [
        route.target(pod, port, pod_labels(pod, container, port))
        for pod in pods
        for container, port in ports(pod)
    ]


def endpoint_targets(services: list[Json], pods: list[Json], route: Route) -> list[Json]:
    """What the role `endpoints` finds: the pods behind each port of the Services.

    Each port of a pod that no Service names would be a target too, without the name of a port. No
    monitor can choose such a target by its port, so it is left out.
    """
    return [
        route.target(pod, port, pod_labels(pod, container, port) | endpoint_labels(service, entry))
        for service in services
        for entry in service["spec"].get("ports", ())
        for pod in pods
        if is_behind(service, pod)
        for container, port in ports(pod)
        if entry["targetPort"] in (port.get("name"), port["containerPort"])
    ]


def is_behind(service: Json, pod: Json) -> bool:
    """Whether the Service selects the pod, and the pod runs."""
    selector = service["spec"].get("selector", {})
    return bool(
        selector
        and service["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and selector.items() <= pod["metadata"].get("labels", {}).items()
        and pod["status"].get("phase") not in ("Succeeded", "Failed")
    )


def ports(pod: Json) -> Iterator[tuple[Json, Json]]:
    """The containers of a pod that has an address, each with each of its ports."""
    if pod["status"].get("podIP"):
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", ()):
                yield container, port


def pod_labels(pod: Json, container: Json, port: Json) -> Labels:
    """The labels that the discovery gives a pod's port, without annotations and node."""
    metadata = pod["metadata"]
    found = {
        "namespace": metadata["namespace"],
        "pod_name": metadata["name"],
        "pod_ip": pod["status"]["podIP"],
        "pod_phase": pod["status"].get("phase", ""),
        "pod_container_name": container["name"],
        "pod_container_port_name": port.get("name", ""),
        "pod_container_port_number": str(port["containerPort"]),
        **dict(labels_of("pod", metadata)),
    }
    return {f"{META}{name}": value for name, value in found.items()}


def endpoint_labels(service: Json, entry: Json) -> Labels:
    """The labels that the discovery gives an endpoint because of its Service. The address is that
    of a pod, whose name is known already.
    """
    metadata = service["metadata"]
    found = {
        "service_name": metadata["name"],
        "endpoint_port_name": entry.get("name", ""),
        **dict(labels_of("service", metadata)),
    }
    return {f"{META}{name}": value for name, value in found.items()}


def labels_of(what: str, metadata: Json) -> Iterator[tuple[str, str]]:
    """The labels of an object, and that they are present."""
    for name, value in metadata.get("labels", {}).items():
        yield f"{what}_label_{sanitized(name)}", value
        yield f"{what}_labelpresent_{sanitized(name)}", "true"


class Discovery:
    """Keeps the files of targets in a folder up to date while the block runs.

    Pods may come and go. The Services are those that are there when the block begins.
    """

    def __init__(self, kubectl: Kubectl, folder: Path, route: Route) -> None:
        self._command = kubectl.command(
            "get", "pods", "-A", "--watch", "--output-watch-events", "-o", "json"
        )
        self._environment = kubectl.environment()
        self._kubectl, self._folder, self._route = kubectl, folder, route
        self._services: list[Json] = []
        self._pods: dict[str, Json] = {}
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Discovery:
        self._services = self._kubectl.read("services", "-A")["items"]
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
        pods = list(self._pods.values())
        write(self._folder / "pod.json", pod_targets(pods, self._route))
        found = endpoint_targets(self._services, pods, self._route)
        write(self._folder / "endpoints.json", found)


def write(file: Path, found: list[Json]) -> None:
    """Replace a file of targets at once: Prometheus never reads half of it."""
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(found))
    unfinished.rename(file)
