"""etcd and a real API server on loopback, for integration tests. It needs neither root nor nodes
and starts in seconds.

Example: `with ApiServer() as server: server.kubectl("apply", "-f", "manifests/crd.yaml")`
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
from devcluster.progress import silent
from devcluster.waiting import wait_until

SERVICES = "198.19.128.0/17"
"""Range of service addresses, where nothing listens: enough for a test of thousands of jobs."""


class ApiServer:
    """An API server that runs from `with` to the end of the block. It also ends with the thread
    that started it.
    """

    def __init__(self, controllers: bool = False) -> None:
        """Prepare the server without starting it.

        `controllers` also runs the controller manager (garbage collection, service accounts).
        """
        self.bin = binaries.build(silent)
        self._controllers = controllers
        self._state = Path(tempfile.mkdtemp(prefix="regroup-api-"))
        self._processes = Processes(self._state)
        port, etcd_port, peer_port = _free_ports(3)
        self._endpoint = ApiEndpoint(
            self.bin, self._state, "127.0.0.1", port, etcd_port, peer_port, SERVICES
        )

    def __enter__(self) -> Self:
        self._endpoint.write_identities("devcluster-api", ())
        self._start("etcd", self._endpoint.etcd())
        # The endpoints of the service `kubernetes` cannot be on loopback, so they are disabled.
        self._start(
            "kube-apiserver", (*self._endpoint.apiserver(), "--endpoint-reconciler-type=none")
        )
        try:
            wait_until(
                self._ready,
                60,
                "A ready API server",
                f"See {self._processes.log('kube-apiserver')}.",
            )
            if self._controllers:
                self._start(
                    "kube-controller-manager",
                    (*self._endpoint.controller_manager(), "--secure-port=0"),
                )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        return self._state / "admin.kubeconfig"

    @property
    def url(self) -> str:
        return self._endpoint.url

    def kubectl(self, *arguments: str | Path, stdin: str = "") -> str:
        """Run kubectl as administrator and return its output. Raises CommandFailedError."""
        return run([self.bin / "kubectl", "--kubeconfig", self.kubeconfig, *arguments], stdin=stdin)

    def stop(self) -> None:
        """End all processes and delete their data."""
        for name in self._processes.names():
            self._processes.kill(name)
        shutil.rmtree(self._state, ignore_errors=True)

    def _ready(self) -> bool:
        for name in ("etcd", "kube-apiserver"):
            self._processes.require_running(name)
        return self._endpoint.api.answers("/readyz")

    def _start(self, name: str, argv: tuple[str | Path, ...]) -> None:
        # The kernel ends the API server when a test is killed. It follows the thread, not the
        # process.
        self._processes.start(Launch(name, ("setpriv", "--pdeathsig", "KILL", *argv)))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
