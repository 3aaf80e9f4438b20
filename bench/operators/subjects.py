"""What is measured: Regroup, Kubeflow Trainer v2, and the floor below which nobody comes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import yaml

from bench.operators import programs
from bench.operators.client import Client, Json, RefusedError, documents
from bench.operators.cluster import BURST, NAMESPACE, QPS, SimulatedCluster
from bench.operators.coordinators import LOST_PATH
from devcluster.pki import Identity
from devcluster.processes import run
from regroup_trainer.protocol.environment import COORDINATOR_PORT

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 8
"""Of each job."""
SYSTEM = "regroup-system"
START_SECONDS = 300
REPLICAS = ("operator-1", "operator-2")
AS_IN_ITS_IMAGE = (
    "import runpy, sys; sys.modules['kubernetes'] = None; "
    "runpy.run_module('regroup_operator', run_name='__main__', alter_sys=True)"
)
"""The operator, without a package that kopf imports where it finds it: 17 MB."""
PHASE = "trainingjob_status_phase{"
"""Begins the series of each job for which the leader has planned since its start."""
WAITING = 'workqueue_depth{name="trainingjob"}'
LEADS = 'leader_election_master_status{name="regroup-operator"}'


class OperatorSubject(ABC):
    """An operator on a cluster. Its processes end with the cluster."""

    label: ClassVar[str]
    """Of pods: the name of their job."""
    jobs_path: ClassVar[str]
    pods_per_job: ClassVar[int]
    can_restart = False

    def __init__(self, cluster: SimulatedCluster, client: Client, script: Client) -> None:
        """`client` acts as the user, `script` as one that stands in for an operator."""
        self.cluster, self.client, self.script = cluster, client, script

    @abstractmethod
    async def install(self) -> None:
        """Bring it up. Raises DevclusterError, TimeoutError."""

    @abstractmethod
    def manifest(self, name: str) -> Json:
        """A job of eight workers."""

    @abstractmethod
    def processes(self) -> Mapping[str, int]:
        """Name -> process id of what it runs, besides Kubernetes."""

    async def create(self, name: str) -> float:
        """Create a job. Returns when the request was sent, on the monotonic clock."""
        return await self.client.create(self.jobs_path, self.manifest(name))

    def standby(self) -> str | None:
        """The process that only stands by."""
        return None

    async def all_train(self) -> bool:
        """Whether all jobs are reported to train."""
        jobs = (await self.client.request("GET", self.jobs_path))["items"]
        return all(map(self.trains, jobs))

    @abstractmethod
    def trains(self, job: Json) -> bool:
        """Whether a job's status says so."""


class RegroupOperator(OperatorSubject):
    """Two replicas of the operator, under the service account of the chart."""

    label = "regroup.dev/job"
    jobs_path = f"/apis/regroup.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
    pods_per_job = WORKERS + 1
    can_restart = True

    async def install(self) -> None:
        """With the coordinators of all jobs to come."""
        await apply_definitions(self.client, documents(ROOT / "manifests/crd.yaml"))
        await make_claim(self.client)
        server = self.cluster.server
        await self.client.request("POST", "/api/v1/namespaces", {"metadata": {"name": SYSTEM}})
        command = ("template", "regroup", ROOT / "charts/regroup", "--namespace", SYSTEM)
        shown = (f"--show-only=templates/{name}.yaml" for name in ("rbac", "flowschema"))
        rendered = run([server.bin / "helm", *command, *shown])
        server.kubectl("apply", "-f", "-", stdin=rendered)
        token = server.kubectl("create", "token", "regroup", "--namespace", SYSTEM).strip()
        config = yaml.safe_load(server.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        self._kubeconfig = self.cluster.folder / "operator.kubeconfig"
        self._kubeconfig.write_text(yaml.safe_dump(config))
        stubs = (sys.executable, "-m", "bench.operators.coordinators", server.url)
        server.start("coordinators", (*stubs, server.endpoint.authority.folder))
        self.start()
        self.wait_until_led()

    def manifest(self, name: str) -> Json:
        """Without elasticity: exactly eight."""
        spec = yaml.safe_load((ROOT / "manifests/samples/smallest.yaml").read_text())["spec"]
        del spec["elasticPolicy"]
        return {
            "apiVersion": "regroup.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {**spec, "replicas": WORKERS},
        }

    def processes(self) -> Mapping[str, int]:
        """Of both replicas."""
        return {name: self.cluster.server.pid(name) for name in REPLICAS}

    def trains(self, job: Json) -> bool:
        """Whether the coordinator says so."""
        return bool(job.get("status", {}).get("phase") == "Running")

    def start(self, names: Sequence[str] = REPLICAS) -> None:
        """Start replicas."""
        for name in names:
            settings = {
                "TRAINER_IMAGE": "example/trainer:1",
                "COORDINATOR_IMAGE": "example/operator:1",
                "KEY_SECRET": f"{SYSTEM}/regroup-key",
                "LEASE": f"{SYSTEM}/regroup-operator",
                "HEALTH_PORT": str(_health_port(name)),
                "METRICS_PORT": str(_metrics_port(name)),
            }
            variables = {f"REGROUP_OPERATOR_{key}": value for key, value in settings.items()}
            variables["KUBECONFIG"] = str(self._kubeconfig)
            self.cluster.server.start(name, (sys.executable, "-c", AS_IN_ITS_IMAGE), variables)

    def leader(self) -> str | None:
        """The replica that leads."""
        return next(filter(_leads, REPLICAS), None)

    def standby(self) -> str | None:
        """The replica that does not lead."""
        leader = self.leader()
        return next((name for name in REPLICAS if name != leader), None)

    def has_synced(self, leader: str, jobs: int) -> bool:
        """Whether the leader has planned for so many jobs since its start, and none waits. In its
        first round of a job that trains it only begins to ask the coordinator.
        """
        if _waiting(leader) != 0:  # a scrape takes a leader of a thousand jobs a fifth of a second
            return False
        found = _series(leader)
        planned = sum(value for name, value in found.items() if name.startswith(PHASE))
        return planned >= jobs and found.get(WAITING) == 0

    def reported(self) -> dict[str, float]:
        """When a coordinator got the report that a pod is lost, by UID, on the monotonic clock."""
        url = f"http://127.0.0.1:{COORDINATOR_PORT}{LOST_PATH}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: dict[str, float] = json.load(answer)
        return found

    def wait_until_led(self) -> None:
        """Until a replica leads, and the other could. Raises TimeoutError."""
        deadline = time.monotonic() + START_SECONDS
        while not (all(map(_is_ready, REPLICAS)) and self.leader()):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no replica leads, or one is not ready, after {START_SECONDS} s"
                )
            time.sleep(0.1)

    def end(self, names: Sequence[str], how: signal.Signals = signal.SIGTERM) -> None:
        """End replicas, and wait for that."""
        pids = [self.cluster.server.pid(name) for name in names]
        for pid in pids:
            os.kill(pid, how)
        for pid in pids:
            os.waitpid(pid, 0)


class TrainerV2(OperatorSubject):
    """Kubeflow Trainer and JobSet, a replica each."""

    label = "jobset.sigs.k8s.io/jobset-name"
    jobs_path = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"
    pods_per_job = WORKERS

    async def install(self) -> None:
        """With webhooks, as in its manifests."""
        report = print
        jobset = programs.build(programs.JOBSET, report)
        trainer = programs.build(programs.TRAINER, report)
        crds = sorted((trainer.sources / "manifests/base/crds").glob("trainer.*.yaml"))
        crds += sorted((jobset.sources / "config/components/crd/bases").glob("*.yaml"))
        await apply_definitions(self.client, documents(*crds))
        self._start_jobset(jobset)
        self._start_trainer(trainer)
        hooks = jobset.sources / "config/components/webhook/manifests.yaml"
        await self._add_webhooks("jobset", hooks, 9443)
        hooks = trainer.sources / "manifests/base/webhook/manifests.yaml"
        await self._add_webhooks("trainer", hooks, 9444)
        runtime = trainer.sources / "manifests/base/runtimes/torch_distributed.yaml"
        (described,) = documents(runtime)
        path = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
        await _until_taken(self.client, "POST", path, described)

    def manifest(self, name: str) -> Json:
        """Eight nodes of its runtime for torch."""
        return {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": name},
            "spec": {
                "runtimeRef": {"name": "torch-distributed"},
                "trainer": {"numNodes": WORKERS},
            },
        }

    def processes(self) -> Mapping[str, int]:
        """Of both operators."""
        return {name: self.cluster.server.pid(name) for name in ("trainer", "jobset")}

    def trains(self, job: Json) -> bool:
        """Whether all its pods are ready."""
        return any(one.get("ready") for one in job.get("status", {}).get("jobsStatus", ()))

    def _certificates(self, name: str) -> Path:
        """A folder with a certificate for webhooks."""
        authority = self.cluster.server.endpoint.authority
        authority.issue(Identity(f"{name}-webhook", name, hosts=("127.0.0.1",)))
        folder = self.cluster.folder / name / "k8s-webhook-server" / "serving-certs"
        folder.mkdir(parents=True)
        (folder / "tls.crt").write_bytes(authority.crt(f"{name}-webhook").read_bytes())
        (folder / "tls.key").write_bytes(authority.key(f"{name}-webhook").read_bytes())
        return folder

    def _start_jobset(self, built: programs.Built) -> None:
        config = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"port": 9443, "certDir": str(self._certificates("jobset"))},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": "127.0.0.1:8111"},
        }
        self._start("jobset", built, config)

    def _start_trainer(self, built: programs.Built) -> None:
        self._certificates("trainer")
        config = {
            "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": "127.0.0.1:8112"},
            "metrics": {"bindAddress": "0", "secureServing": False},
            "webhook": {"port": 9444, "host": "127.0.0.1"},
            "leaderElection": {"leaderElect": False},
            "certManagement": {"enable": False},
        }
        self._start("trainer", built, config)

    def _start(self, name: str, built: programs.Built, config: Json) -> None:
        if not self.cluster.stock_limits:
            config["clientConnection"] = {"qps": QPS, "burst": BURST}
        file = self.cluster.folder / f"{name}.yaml"
        file.write_text(json.dumps(config))
        server = self.cluster.server
        kubeconfig = server.kubeconfig_of(Identity(name, name, "system:masters"))
        variables = {"KUBECONFIG": str(kubeconfig), "TMPDIR": str(self.cluster.folder / name)}
        server.start(name, (built.program, f"--config={file}"), variables)

    async def _add_webhooks(self, name: str, file: Path, port: int) -> None:
        authority = self.cluster.server.endpoint.authority
        bundle = _base64(authority.certificate.read_bytes())
        for described in documents(file):
            kind = described["kind"]
            described["metadata"]["name"] = f"{name}-{kind.lower()}"
            for hook in described["webhooks"]:
                path = hook["clientConfig"].pop("service")["path"]
                hook["clientConfig"] = {
                    "url": f"https://127.0.0.1:{port}{path}",
                    "caBundle": bundle,
                }
                if any("pods" in rule["resources"] for rule in hook["rules"]):
                    there = {"key": TrainerV2.label, "operator": "Exists"}
                    hook["objectSelector"] = {"matchExpressions": [there]}
            plural = f"{kind.lower()}s"
            where = f"/apis/admissionregistration.k8s.io/v1/{plural}"
            await self.client.request("POST", where, described)


async def apply_definitions(client: Client, described: Sequence[Json]) -> None:
    """Create CustomResourceDefinitions, and wait until they are served."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for one in described:
        await client.request("POST", path, one)
    for one in described:
        spec = one["spec"]
        served = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        await _until_taken(client, "GET", served)


async def make_claim(client: Client) -> None:
    """The volume that all jobs write to."""
    size = {"storage": "1Gi"}
    reference = {"namespace": NAMESPACE, "name": "shared"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**common, "capacity": size, "claimRef": reference, "hostPath": {"path": "/none"}}
    claim = {**common, "resources": {"requests": size}, "volumeName": "shared"}
    metadata = {"name": "shared"}
    await client.request(
        "POST", "/api/v1/persistentvolumes", {"metadata": metadata, "spec": volume}
    )
    where = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"
    await client.request("POST", where, {"metadata": metadata, "spec": claim})


async def _until_taken(client: Client, method: str, path: str, body: Json | None = None) -> None:
    """Repeat a request that is refused at first: a definition, or a webhook, takes a moment."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            await client.request(method, path, body)
        except RefusedError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
        else:
            return


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _metrics_port(replica: str) -> int:
    return 8091 + REPLICAS.index(replica)


def _health_port(replica: str) -> int:
    return 8101 + REPLICAS.index(replica)


def _is_ready(replica: str) -> bool:
    """Whether it has read all that it watches, so that it could lead."""
    return _waiting(replica) is not None


def _waiting(replica: str) -> int | None:
    """How many jobs wait for a round; None until it is ready."""
    try:
        url = f"http://127.0.0.1:{_health_port(replica)}/healthz"
        with urllib.request.urlopen(url, timeout=5) as answer:
            waiting: int = json.load(answer)["waiting"]
            return waiting
    except OSError:  # HTTPError too
        return None


def _leads(replica: str) -> bool:
    return _series(replica).get(LEADS) == 1


def _series(replica: str) -> dict[str, float]:
    """Its metrics; none while it does not answer."""
    try:
        url = f"http://127.0.0.1:{_metrics_port(replica)}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in found}
