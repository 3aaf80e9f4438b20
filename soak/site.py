"""The cluster of a soak, its jobs, and the processes behind their pods."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from demo import installation as installing
from demo.screen import Screen
from demo.stages.devcluster import DevclusterStage
from demo.stages.stage import shared_claim
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.kubeapi import KubeApi
from devcluster.node import Node
from devcluster.processes import read_proc
from devcluster.progress import silent
from devcluster.waiting import wait_until
from soak import clock, records
from soak.jobs import PROGRAMS
from soak.process import Process
from soak.volume import SIZE, SoakVolume
from soak.waiting import until

PROGRAMS_FOLDER = Path(__file__).resolve().parent / "programs"
GROUP = "/apis/regroup.dev/v1alpha1/namespaces"
UNREACHABLE = (OSError, http.client.HTTPException, DevclusterError, ValueError)
"""What a request raises while the API server is away, or does not know the object."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """A devcluster with Regroup, and a namespace."""

    stage: DevclusterStage
    namespace: str

    @classmethod
    def up(cls, cluster: str, namespace: str, screen: Screen) -> Site:
        """Build, start and install what is missing. Raises DemoError, DevclusterError."""
        built = installing.build_images(screen)
        stage = DevclusterStage.up(screen, cluster)
        installing.install(stage, built, screen)
        described = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        files = {path.name: path.read_text() for path in PROGRAMS_FOLDER.glob("*.py")}
        programs = {"kind": "ConfigMap", "metadata": {"name": PROGRAMS}, "data": files}
        stage.kubectl.apply(described)
        stage.kubectl.apply(
            {"apiVersion": "v1", **programs}, clock.config_map(), namespace=namespace
        )
        return cls(stage, namespace)

    @property
    def cluster(self) -> Cluster:
        """The machine's side of it."""
        return self.stage.cluster

    @property
    def api(self) -> KubeApi:
        """With all rights."""
        return self.cluster.plane.endpoint.api

    def repair(self) -> bool:
        """Start all of the cluster that does not run; whether all its nodes are Ready."""
        with contextlib.suppress(*UNREACHABLE):
            self.cluster.assembly.repair(silent)
            return True
        return False

    def start(self, manifest: Json) -> Job:
        """Apply a job with a volume of its own."""
        name = manifest["metadata"]["name"]
        volume = SoakVolume.make(self.cluster, f"{self.namespace}-{name}")
        size = {"requests": {"storage": SIZE}}
        claim = shared_claim(storageClassName=volume.name, resources=size)
        claim["metadata"]["name"] = name
        self.stage.kubectl.apply(claim, manifest, namespace=self.namespace)
        torchrun = manifest["spec"].get("launcher") == "torchrun"
        job = Job(self, name, volume, torchrun)
        wait_until(lambda: job.read()["metadata"]["uid"], 30, f"The job {name}")
        return job

    def pods(self, selector: str, namespace: str | None = None) -> list[Json]:
        """Pods that are not being deleted."""
        where = f"/api/v1/namespaces/{namespace or self.namespace}/pods?labelSelector={selector}"
        found = self.api.request("GET", where)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pod_path(self, name: str) -> str:
        """Where the API server has a pod of the namespace."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{name}"

    def operators(self) -> list[Json]:
        """The operator's pods."""
        return self.pods("app.kubernetes.io/part-of=regroup", installing.SYSTEM)

    def operates(self) -> bool:
        """Whether an operator runs; False while nobody can be asked."""
        with contextlib.suppress(*UNREACHABLE):
            for pod in self.operators():
                with contextlib.suppress(LookupError):
                    return bool(self.main_process(pod))
        return False

    def leader(self) -> str:
        """The operator's pod that leads; empty while none does. Raises one of UNREACHABLE."""
        where = f"/apis/coordination.k8s.io/v1/namespaces/{installing.SYSTEM}/leases"
        holders = [one["spec"]["holderIdentity"] for one in self.api.request("GET", where)["items"]]
        return (holders[0] or "").rpartition("_")[0] if holders else ""

    def node_of(self, pod: Json) -> Node:
        """The node that runs a pod."""
        return self.cluster.node(pod["spec"]["nodeName"]).node

    def processes(self, pod: Json) -> dict[int, str]:
        """Id -> name of the processes of a pod, without the one that only holds its network."""
        return {pid: name for pid, name in self._named(pod).items() if name not in ("pause", "")}

    def _named(self, pod: Json) -> dict[int, str]:
        pids = self.node_of(pod).pod_processes(pod["metadata"]["uid"])
        return {pid: read_proc(pid, "comm").strip() for pid in pids}

    def has_process(self, pod: Json) -> bool:
        """Whether a pod has a node, and a process there."""
        with contextlib.suppress(LookupError, DevclusterError):
            return "nodeName" in pod["spec"] and bool(self.main_process(pod))
        return False

    def main_process(self, pod: Json) -> Process:
        """Process 1 of a pod's container. Raises LookupError when there is none."""
        for pid in self.processes(pod):
            inner = [line for line in read_proc(pid, "status").splitlines() if "NSpid" in line]
            if inner and inner[0].split()[-1] == "1":
                return Process.of(pid)
        raise LookupError(f"pod {pod['metadata']['name']} has no process")

    def sidecar(self, pod: Json) -> Process:
        """The process beside the trainer: the younger of two, since the pod's network came first.
        Raises LookupError.
        """
        found = [Process.of(pid) for pid, name in self._named(pod).items() if name == "pause"]
        if len(found) < 2:
            raise LookupError(f"pod {pod['metadata']['name']} has no sidecar")
        return max(found, key=lambda process: process.started)

    def scratch(self, pod: Json) -> Path:
        """The folder that a pod has as /tmp."""
        folder: Path = self.node_of(pod).folder / "kubelet" / "pods" / pod["metadata"]["uid"]
        return folder / "volumes" / "kubernetes.io~empty-dir" / "scratch"

    def runs(self, node: str) -> bool:
        """Whether a node has power, a network and a kubelet, and is not frozen."""
        found = self.cluster.node(node).node
        has_kubelet = found.is_running(self.cluster.processes)
        return has_kubelet and found.is_plugged() and not found.is_frozen()

    def is_ready(self, node: str) -> bool:
        """What Kubernetes thinks of a node; False while it cannot be asked."""
        with contextlib.suppress(*UNREACHABLE):
            return self.api.nodes_ready().get(node, False)
        return False

    def is_back(self, node: str, moment: float) -> bool:
        """Whether a node is Ready and its kubelet renewed its lease after `moment`, in seconds
        since the epoch. For a while Kubernetes takes a node without power for Ready.
        """
        where = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"
        with contextlib.suppress(*UNREACHABLE, KeyError):
            renewed = datetime.fromisoformat(self.api.request("GET", where)["spec"]["renewTime"])
            return renewed.timestamp() > moment and self.is_ready(node)
        return False


@dataclass(frozen=True)
class Job:
    """A TrainingJob of a soak."""

    site: Site
    name: str
    volume: SoakVolume
    is_torchrun: bool = False

    @property
    def meeting_role(self) -> str:
        """The role of the pod through which workers meet."""
        return "store" if self.is_torchrun else "coordinator"

    def read(self) -> Json:
        """The object. Raises one of UNREACHABLE."""
        where = f"{GROUP}/{self.site.namespace}/trainingjobs/{self.name}"
        return self.site.api.request("GET", where)

    def status(self) -> Json:
        """Empty before the operator has seen it. Raises one of UNREACHABLE."""
        return dict(self.read().get("status", {}))

    def folder(self) -> Path | None:
        """What it writes; None before there is anything."""
        found = list(self.volume.content.glob(f"{self.site.namespace}/{self.name}-*"))
        return found[0] if found else None

    def pods(self, role: str) -> list[Json]:
        """Its pods of a role that are not being deleted."""
        return self.site.pods(f"regroup.dev/job={self.name},regroup.dev/role={role}")

    def workers(self) -> list[tuple[int, Json]]:
        """Rank and pod of the workers that train, by rank; under torchrun, where nobody knows the
        ranks, those that have a process, by index: the status also knows those that a power cut
        has ended, and those that are being started. Raises one of UNREACHABLE.
        """
        known = "index" if self.is_torchrun else "rank"
        ranks = {one["pod"]: one.get(known) for one in self.status().get("workers", ())}
        found = [
            (rank, pod)
            for pod in self.pods("worker")
            if (rank := ranks.get(pod["metadata"]["name"])) is not None
            and (self.site.has_process(pod) if self.is_torchrun else "nodeName" in pod["spec"])
        ]
        return sorted(found, key=lambda one: one[0])

    def training(self) -> tuple[str, int] | None:
        """Generation and newest step on the volume, if all its workers train; None while nobody can
        be asked.
        """
        with contextlib.suppress(*UNREACHABLE, KeyError):
            found, folder = self.read(), self.folder()
            status, step = found["status"], records.newest_step(folder) if folder else None
            if step is not None and status["phase"] == "Running":
                size = status["readyReplicas" if self.is_torchrun else "worldSize"]
                generation = status.get("rendezvousGeneration", "")
                return (generation, step) if size == found["spec"]["replicas"] else None
        return None

    def suspend(self, seconds: float = 120) -> bool:
        """Have it save and give its pods back; whether it did in time."""
        body = json.dumps({"spec": {"suspend": True}})
        where = ("-n", self.site.namespace, "--type=merge")
        self.site.stage.kubectl("patch", "trainingjob", self.name, *where, "-p", body)
        return self._has_condition("Suspended", seconds)

    def delete(self) -> None:
        """Delete it without waiting for its pods."""
        where = ("-n", self.site.namespace, "--wait=false", "--ignore-not-found")
        self.site.stage.kubectl("delete", "trainingjob", self.name, *where)
        ours = ("-l", f"regroup.dev/job={self.name}", "--grace-period=1")
        self.site.stage.kubectl("delete", "pods", *ours, *where)

    def _has_condition(self, kind: str, seconds: float) -> bool:
        def there() -> bool:
            with contextlib.suppress(*UNREACHABLE):
                found = {one["type"]: one["status"] for one in self.status()["conditions"]}
                return found.get(kind) == "True"
            return False

        return until(there, seconds)


def watched(site: Site, jobs: tuple[Job, ...]) -> Iterator[tuple[str, str, Process]]:
    """Role, name and process of the operators, and of the coordinators and agents of jobs. Under
    torchrun these are torch's. An operator that begins to lead needs more memory from then on.
    """
    ours = [job for job in jobs if not job.is_torchrun]
    leader = site.leader()
    pods = [
        ("operator" if pod["metadata"]["name"] == leader else "standby", pod)
        for pod in site.operators()
    ]
    roles = ((job, role) for job in ours for role in (job.meeting_role, "worker"))
    pods += ((role, pod) for job, role in roles for pod in job.pods(role))
    for role, pod in pods:
        with contextlib.suppress(LookupError, KeyError, DevclusterError):
            process = site.main_process(pod)
            yield role, f"{pod['metadata']['name']} {process.pid}-{process.started}", process
