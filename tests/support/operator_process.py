"""The operator as a process on a real API server, and what stands in for scheduler and kubelets."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from devcluster import binaries
from devcluster.processes import cpu_seconds, memory_mib
from regroup_trainer.protocol.job_status import MemberStatus
from regroup_trainer.system.machine_address import free_port
from tests.support.chart import rendered_text
from tests.support.kube_api import Api, Json, Namespace
from tests.support.repeating import repeated
from tests.support.waiting import wait_until

RELEASE = "regroup-system"
RIGHTS = (
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "FlowSchema",
)
"""Kinds of what the chart gives the operator's account: what it may do, and its turn to do so."""
NAMESPACES = "REGROUP_OPERATOR_NAMESPACES"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{RELEASE}/leases/regroup-operator"


def apply(api: Api, *arguments: str, stdin: str = "") -> str:
    """kubectl."""
    return run("kubectl", "--kubeconfig", str(api.kubeconfig), *arguments, stdin=stdin)


def run(program: str, *arguments: str, stdin: str = "") -> str:
    """One of devcluster's programs; what it prints."""
    path = str(binaries.build(lambda *_: None) / program)
    done = subprocess.run(
        [path, *arguments], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class OperatorProcess:
    """`python -m regroup_operator`, to be killed and started again."""

    def __init__(
        self, kubeconfig: Path, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """`environment`: more variables."""
        self.health_port, self.metrics_port = free_port(), free_port()
        self.log = folder / "operator.log"
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "REGROUP_OPERATOR_TRAINER_IMAGE": "example/trainer:1",
            "REGROUP_OPERATOR_COORDINATOR_IMAGE": "example/operator:1",
            "REGROUP_OPERATOR_KEY_SECRET": f"{RELEASE}/regroup-key",
            "REGROUP_OPERATOR_LEASE": f"{RELEASE}/regroup-operator",
            "REGROUP_OPERATOR_HEALTH_PORT": str(self.health_port),
            "REGROUP_OPERATOR_METRICS_PORT": str(self.metrics_port),
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, stands_by: bool = False) -> None:
        """Start it and wait until it is healthy, and leads if it does not stand by. A former leader
        that was killed holds its Lease for 15 s.
        """
        self.launch()
        self.wait_until_healthy()
        if not stands_by:
            wait_until("an operator that leads", self.leads, seconds=60)

    def launch(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "regroup_operator"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def leads(self) -> bool:
        """Whether it is the leader."""
        return 'leader_election_master_status{name="regroup-operator"} 1.0' in self.metrics()

    def wait_until_healthy(self) -> None:
        """Wait until it answers a probe."""
        wait_until("a healthy operator", self._healthy, seconds=60)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal that ends it; its exit code."""
        self.send(how)
        return self.wait()

    def kill(self, api: Api) -> None:
        """Kill it. Its Lease goes too: only tests of the election wait until it expires."""
        self.stop(signal.SIGKILL)
        answer = api.request("DELETE", LEASE)
        assert answer.status == 200, answer.message

    def end(self) -> None:
        """Kill it if it runs."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def send(self, how: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(how)

    def wait(self) -> int:
        """Wait for its end; its exit code."""
        assert self._process is not None
        return self._process.wait(timeout=60)

    def metrics(self) -> str:
        """What a scrape gets."""
        return _get(f"http://127.0.0.1:{self.metrics_port}/metrics")

    def total(self, name: str, /, **labels: str) -> float:
        """The sum of all series of this name with these labels."""
        families = text_string_to_metric_families(self.metrics())
        samples = (sample for family in families for sample in family.samples)
        return sum(
            sample.value
            for sample in samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def cpu_seconds(self) -> float:
        """CPU time that it has used since its last start."""
        assert self._process is not None
        return cpu_seconds(self._process.pid)

    def memory_mib(self) -> float:
        """The memory that it has in use."""
        assert self._process is not None
        return memory_mib(self._process.pid)

    def _healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        try:
            return bool(_get(f"http://127.0.0.1:{self.health_port}/healthz"))
        except OSError:
            return False


def installed_operator(api: Api, folder: Path, *settings: str) -> OperatorProcess:
    """The operator under the service account of the chart, to be started. Its files are in
    `folder`. Of `settings` of the chart, each `name=JSON`, it has the rights and the namespaces.
    """
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": RELEASE}})
    chart = list(yaml.safe_load_all(rendered_text(*settings)))
    rights = [one for one in chart if one and one["kind"] in RIGHTS]
    apply(api, "apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    (deployment,) = (one for one in chart if one and one["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    namespaces = {e["name"]: e["value"] for e in container["env"] if e["name"] == NAMESPACES}
    return OperatorProcess(kubeconfig_of_release(api, folder), folder, namespaces)


def kubeconfig_of_release(api: Api, folder: Path) -> Path:
    """With the service account of the release that is installed, in `folder`."""
    token = apply(api, "create", "token", "regroup", "--namespace", RELEASE).strip()
    config = yaml.safe_load(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return folder / "kubeconfig"


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


class Kubelets:
    """Stand in for scheduler and kubelets."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def pods(self, role: str = "") -> dict[str, Json]:
        """Pods that are not being deleted, by name."""
        found = self.namespace.api.list_all(self.namespace.core("pods"))
        return {
            pod["metadata"]["name"]: pod
            for pod in found
            if "deletionTimestamp" not in pod["metadata"]
            and role in pod["metadata"]["labels"]["regroup.dev/role"]
        }

    def run(self, name: str, node: str, address: str = "198.18.0.9") -> Json:
        """Bind a pod and call it Running and Ready."""
        self.bind(name, node)
        return self.run_bound(name, address)

    def run_bound(self, name: str, address: str = "198.18.0.9") -> Json:
        """Call a pod that has a node Running and Ready."""
        self.write(name, {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]})
        self.set_ready(name, ready=True)
        return self.namespace.api.request("GET", self.namespace.core(f"pods/{name}")).body

    def bind(self, name: str, node: str) -> bool:
        """Give a pod its node, as the scheduler does. Returns whether it has it now."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": target,
        }
        path = self.namespace.core(f"pods/{name}/binding")
        return self.namespace.api.request("POST", path, binding).status == 201

    def set_ready(self, name: str, *, ready: bool) -> None:
        """Write the result of a pod's readiness probe."""
        condition = {"type": "Ready", "status": str(ready)}
        self.write(name, {"conditions": [condition]})

    def write(self, name: str, status: Json) -> None:
        """Write a pod's status."""
        path = self.namespace.core(f"pods/{name}/status")
        answer = self.namespace.api.request(
            "PATCH", path, {"status": status}, "application/merge-patch+json"
        )
        assert answer.status == 200, answer.message

    def remove_deleted(self) -> None:
        """Confirm deletions, as kubelets do when the containers are gone."""
        for pod in self.namespace.api.request("GET", self.namespace.core("pods")).body["items"]:
            if "deletionTimestamp" in pod["metadata"]:
                path = self.namespace.core(f"pods/{pod['metadata']['name']}")
                self.namespace.api.request("DELETE", path, {"gracePeriodSeconds": 0})


def make_claim(namespace: Namespace, modes: tuple[str, ...] = ("ReadWriteMany",)) -> None:
    spec = {
        "accessModes": list(modes),
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "none",
    }
    body = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "shared"},
        "spec": spec,
    }
    answer = namespace.api.request("POST", namespace.core("persistentvolumeclaims"), body)
    assert answer.status == 201, answer.message


def make_node(api: Api, name: str) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    api.request("POST", "/api/v1/nodes", node)
    status = {
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "reason": "K", "message": ""}]
        }
    }
    api.request("PATCH", f"/api/v1/nodes/{name}/status", status, "application/merge-patch+json")
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}
    api.request("POST", "/api/v1/namespaces", namespace)
    renew(api, name, "2026-01-01T00:00:00.000000Z")


def renew(api: Api, name: str, time: str) -> None:
    """The kubelet shows life."""
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    lease = {"metadata": {"name": name}, "spec": {"holderIdentity": name, "renewTime": time}}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", **lease}
    if api.request("POST", path, body).status == 409:
        api.request(
            "PATCH", f"{path}/{name}", {"spec": lease["spec"]}, "application/merge-patch+json"
        )


@contextmanager
def renewed_leases(api: Api, names: Sequence[str]) -> Iterator[None]:
    """Inside, the kubelets of these nodes show life each second."""
    counts = itertools.count()

    def renew_all() -> None:
        time = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(seconds=next(counts))
        for name in names:
            renew(api, name, time.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))

    with repeated(renew_all, 1.0):
        yield


def condition(namespace: Namespace, kind: str) -> Json:
    conditions = namespace.read().get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def member(pod: Json, rank: int | None, lost: str = "") -> MemberStatus:
    metadata, labels = pod["metadata"], pod["metadata"]["labels"]
    return MemberStatus(
        member=metadata["uid"],
        index=int(labels["regroup.dev/index"]),
        pod=metadata["name"],
        node=pod["spec"]["nodeName"],
        rank=rank,
        step=1,
        lost=lost,
    )


NODES = ("n1", "n2", "n3")
