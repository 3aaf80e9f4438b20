"""Only etcd and a real API server on loopback, for integration tests: no root, no nodes, up in seconds.

with ApiServer() as server:
    server.kubectl("apply", "-f", "manifests/crd.yaml")
"""

from __future__ import annotations

import shutil
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from devcluster import binaries
from devcluster.controlplane import ApiEndpoint
from devcluster.processes import Launch, Processes, run
from devcluster.progress import Say, silent
from devcluster.waiting import wait_until

SERVICES = "198.19.240.0/24"
"""Addresses that are handed out to services and lead nowhere."""


class ApiServer:
    """An API server of its own, from `with` to the end of the block, or of the thread that made it."""

    def __init__(self, controllers: bool = False, say: Say = silent) -> None:
        """Start nothing yet; `controllers` also runs the controller manager (garbage collection, service accounts)."""
        self.bin = binaries.build(say)
        self._controllers = controllers
        self._state = Path(tempfile.mkdtemp(prefix="regroup-api-"))
        self._processes = Processes(self._state)
        port, etcd_port, peer_port = _free_ports(3)
        self._endpoint = ApiEndpoint(self.bin, self._state, "127.0.0.1", port, etcd_port, peer_port, SERVICES)

    def __enter__(self) -> Self:
        self._endpoint.write_identities("devcluster-api", ())
        self._start("etcd", self._endpoint.etcd())
        # The endpoints of the service `kubernetes` can't be on loopback: leave them out.
        self._start("kube-apiserver", (*self._endpoint.apiserver(), "--endpoint-reconciler-type=none"))
        try:
            wait_until(self._ready, 60, "A ready API server", f"See {self._processes.log('kube-apiserver')}.")
            if self._controllers:
                self._start("kube-controller-manager", (*self._endpoint.controller_manager(), "--secure-port=0"))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._state / "admin.kubeconfig"

    @property
    def url(self) -> str:
        """What clients connect to."""
        return self._endpoint.url

    def kubectl(self, *arguments: str | Path, stdin: str = "") -> str:
        """Run kubectl with all rights and return what it prints; raises CommandFailedError."""
        return run([self.bin / "kubectl", "--kubeconfig", self.kubeconfig, *arguments], stdin=stdin)

    def stop(self) -> None:
        """End all and delete the data."""
        for name in self._processes.names():
            self._processes.kill(name)
        shutil.rmtree(self._state, ignore_errors=True)

    def _ready(self) -> bool:
        for name in ("etcd", "kube-apiserver"):
            self._processes.must_run(name)
        return self._endpoint.api.answers("/readyz")

    def _start(self, name: str, argv: tuple[str | Path, ...]) -> None:
        # A test that is killed takes its API server along. (The kernel watches the thread, not the process.)
        self._processes.start(Launch(name, ("setpriv", "--pdeathsig", "KILL", *argv)))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
