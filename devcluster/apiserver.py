"""etcd and a real API server on loopback, for integration tests. It needs neither root nor nodes
and starts in seconds.

Example: `with ApiServer() as server: server.kubectl("apply", "-f", "manifests/crd.yaml")`
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from devcluster import binaries
from devcluster.controlplane import CLIENTS, ApiEndpoint
from devcluster.pki import Identity
from devcluster.processes import Launch, Processes, run
from devcluster.progress import silent
from devcluster.waiting import wait_until
from regroup_trainer.system.machine_address import free_ports

SERVICES = "198.19.128.0/17"
"""Range of service addresses, where nothing listens: enough for a test of thousands of jobs."""


READY_SECONDS = 180
"""It takes four; on a machine with many other processes, a minute and more."""


class ApiServer:
    """An API server that runs from `with` to the end of the block. It also ends with the thread
    that started it.
    """

    def __init__(self, controllers: bool = False, flags: tuple[str, ...] = ()) -> None:
        """Prepare the server without starting it.

        `controllers` also runs the controller manager (garbage collection, service accounts).
        `flags` are further ones of the API server.
        """
        self.bin = binaries.build(silent)
        self._controllers, self._flags = controllers, flags
        self._state = Path(tempfile.mkdtemp(prefix="regroup-api-"))
        self._processes = Processes(self._state)
        port, etcd_port, peer_port = free_ports(3)
        self.endpoint = ApiEndpoint(
            self.bin, self._state, "127.0.0.1", port, etcd_port, peer_port, SERVICES
        )

    def __enter__(self) -> Self:
        self.endpoint.write_identities("devcluster-api", ())
        self.start("etcd", self.endpoint.etcd())
        # The endpoints of the service `kubernetes` cannot be on loopback, so they are disabled.
        server = (*self.endpoint.apiserver(), "--endpoint-reconciler-type=none", *self._flags)
        self.start("kube-apiserver", server)
        try:
            wait_until(
                self._ready,
                READY_SECONDS,
                "A ready API server",
                f"See {self._processes.log('kube-apiserver')}.",
            )
            if self._controllers:
                manager = (*self.endpoint.controller_manager(), "--secure-port=0")
                self.start("kube-controller-manager", manager)
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
        return self.endpoint.url

    def kubeconfig_of(self, identity: Identity) -> Path:
        """The kubeconfig of a client with a certificate of its own."""
        self.endpoint.authority.issue(identity)
        file = self._state / f"{identity.name}.kubeconfig"
        file.touch(mode=0o600)
        text = self.endpoint.authority.kubeconfig(identity.name, self.url, "devcluster-api")
        file.write_text(text)
        return file

    def start_scheduler(self, *flags: str) -> None:
        """Start Kubernetes' scheduler, which ends with the API server. It serves nothing."""
        (identity,) = (one for one in CLIENTS if one.name == "scheduler")
        kubeconfig = f"--kubeconfig={self.kubeconfig_of(identity)}"
        command = (self.bin / "kube-scheduler", kubeconfig, "--leader-elect=false")
        self.start("kube-scheduler", (*command, "--secure-port=0", *flags))

    def start(
        self,
        name: str,
        argv: tuple[str | Path, ...],
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start a program that ends with the API server. Returns its process id."""
        # The kernel ends it when a test is killed. It follows the thread, not the process.
        command = ("setpriv", "--pdeathsig", "KILL", *argv)
        self._processes.start(Launch(name, command, environment=environment or {}))
        return self.pid(name)

    def pid(self, name: str) -> int:
        """The process id of a program that was started. Raises DevclusterError when it has
        ended.
        """
        self._processes.require_running(name)
        return self._processes.pid(name) or 0

    def log(self, name: str) -> Path:
        """What a program has printed."""
        return self._processes.log(name)

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
        return self.endpoint.api.answers("/readyz")
