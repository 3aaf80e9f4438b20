"""A real control plane, and nodes that kwok simulates."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import yaml

from bench.operators import audit, programs
from bench.operators.client import Client, Json, until
from devcluster.apiserver import ApiServer
from devcluster.pki import Identity
from devcluster.processes import cpu_seconds, memory_mib

POD_ADDRESSES = "198.18.0.0/16"
"""All are local in the benchmark's network namespace."""
PODS_PER_NODE = 110
READY_SECONDS = 300.0
NAMESPACE = "bench"
STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)
PARALLEL = (
    "podPlayStageParallelism",
    "nodePlayStageParallelism",
    "nodeLeaseParallelism",
    "podsOnNodeSyncParallelism",
)
"""kwok has no defaults of these for a configuration in a file."""
QPS, BURST = 5000, 10000
"""Open limits of clients: nobody comes near them."""


@dataclass(frozen=True)
class Usage:
    """Of a process."""

    cpu_seconds: float
    """Since its start."""
    rss_mb: float
    peak_mb: float


def usage(pid: int) -> Usage:
    """Raises LookupError when there is no such process."""
    rss, peak = (memory_mib(pid, kind) * 2**20 / 1e6 for kind in ("VmRSS", "VmHWM"))
    return Usage(cpu_seconds(pid), rss, peak)


class SimulatedCluster:
    """A context manager."""

    def __init__(self, report: Callable[[str], None], *, stock_limits: bool = False) -> None:
        """With `stock_limits`, the clients of Kubernetes' controllers and of operators have the
        limits of requests that they come with; otherwise open ones.
        """
        self.stock_limits = stock_limits
        self._report = report
        self._kwok = programs.build(programs.KWOK, report)
        self.folder = Path(tempfile.mkdtemp(prefix="regroup-bench-"))
        self.audit_log = self.folder / "audit.jsonl"
        policy = self.folder / "policy.yaml"
        policy.write_text(audit.POLICY)
        flags = (f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}")
        self.server = ApiServer(flags=(*flags, "--audit-log-maxsize=10000"))

    def __enter__(self) -> Self:
        self.server.__enter__()
        try:
            self._start_controllers()
            self._start_kwok()
        except BaseException:
            self.server.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            shutil.rmtree(self.folder)
        else:
            logs = shutil.copytree(self.server.log("etcd").parent, self.folder / "log")
            self._report(f"what its programs have printed is in {logs}")
        self.server.stop()

    def client(self, name: str = "admin") -> Client:
        """With all rights. The audit log has `name` for a user."""
        authority = self.server.endpoint.authority
        if name != "admin":
            authority.issue(Identity(name, name, "system:masters"))
        return Client(self.server.url, authority, name)

    async def add_nodes(self, client: Client, pods: int) -> None:
        """Enough for so many pods. Raises TimeoutError when they do not get ready."""
        count = 1 + 2 * pods // PODS_PER_NODE
        for number in range(count):
            metadata = {"name": f"node{number}", "labels": {"kubernetes.io/hostname": f"n{number}"}}
            await client.request("POST", "/api/v1/nodes", {"metadata": metadata})
        await client.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})

        async def are_ready() -> bool:
            nodes = (await client.request("GET", "/api/v1/nodes"))["items"]
            return sum(map(_is_ready, nodes)) == count

        await until(are_ready, READY_SECONDS)

    def audit_size(self) -> int:
        """Bytes of the audit log: where `writes_since` is to begin."""
        return self.audit_log.stat().st_size

    def writes_since(self, begin: int) -> Counter[audit.Write]:
        """The writes that came after the audit log had so many bytes."""
        with self.audit_log.open() as log:
            log.seek(begin)
            return audit.writes(log)

    def status_writes_since(self, begin: int, resource: str) -> Counter[str]:
        """Those of the status of each object, by its name."""
        with self.audit_log.open() as log:
            log.seek(begin)
            return audit.status_writes(log, resource)

    def controllers_pid(self) -> int:
        """Of Kubernetes' controller manager."""
        return self.server.pid("kube-controller-manager")

    def _start_controllers(self) -> None:
        open_limits = (f"--kube-api-qps={QPS}", f"--kube-api-burst={BURST}")
        limits = () if self.stock_limits else open_limits
        manager = (*self.server.endpoint.controller_manager(), "--secure-port=0", *limits)
        self.server.start("kube-controller-manager", manager)
        self.server.start_scheduler(*limits)

    def _start_kwok(self) -> None:
        options = {
            "manageAllNodes": True,
            "cidr": POD_ADDRESSES,
            "nodeIP": "127.0.0.1",
            "enablePodsOnNodeSyncStreamWatch": False,
            "nodeLeaseDurationSeconds": 40,
            "enableDebuggingHandlers": False,
            **dict.fromkeys(PARALLEL, 16),
        }
        described = {
            "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
            "kind": "KwokConfiguration",
            "options": options,
        }
        config = self.folder / "kwok.yaml"
        config.write_text(yaml.safe_dump(described))
        stages = [self._kwok.sources / "kustomize/stage" / name for name in STAGES]
        files = [f"--config={file}" for file in (config, *stages)]
        kubeconfig = self.server.kubeconfig_of(Identity("kwok", "kwok", "system:masters"))
        self.server.start("kwok", (self._kwok.program, f"--kubeconfig={kubeconfig}", *files))


def _is_ready(node: Json) -> bool:
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")
