"""One cluster of three nodes with the operator installed, for all end-to-end tests of a process; a
namespace for each test.

It is a devcluster of their own, or what CLUSTER asks for: kind, or current, the caller's kubeconfig
context.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from demo import installation as installing
from demo.kubectl import Kubectl
from demo.screen import Screen
from demo.stages.choice import STAGES
from demo.stages.devcluster import DevclusterStage
from demo.stages.stage import Stage, shared_claim
from demo.volume import Volume
from devcluster import cgroups
from devcluster.cluster import Cluster
from devcluster.processes import read_proc
from devcluster.removal import remove
from soak.machine_faults import LEAST_SHARE, LONGEST_SECONDS, Hogs
from tests.support.cluster_look import look_at
from tests.support.jobs import Job
from tests.support.waiting import wait_until

NAME = f"e2e{os.environ.get('PYTEST_XDIST_WORKER', '')}"


@dataclass
class Installation:
    """Regroup on a cluster, a namespace, and access to what a user cannot reach."""

    stage: Stage
    namespace: str
    started: list[Job] = field(default_factory=list)

    @property
    def kubectl(self) -> Kubectl:
        """With all rights."""
        return self.stage.kubectl

    def start(self, manifest: Mapping[str, Any]) -> Job:
        """Apply a job; it is deleted after the test."""
        job = Job.apply(self.kubectl, self.namespace, manifest)
        self.started.append(job)
        return job

    def worker_of_rank(self, job: Job, rank: int) -> str:
        """The pod that runs a rank."""
        return str(self._worker(job, rank)["pod"])

    @contextlib.contextmanager
    def lost_node_of_rank_0(self, job: Job) -> Iterator[str]:
        """Cut the power of the node that runs rank 0; yields its name, and powers it on again at
        the end.
        """
        worker = self._worker(job, 0)
        node = str(worker["node"])
        coordinator = job.coordinator()["spec"]["nodeName"]
        assert node != coordinator, f"rank 0 shares the node {coordinator} with the coordinator"
        with self.lost_node(node, str(worker["pod"])):
            yield node

    @contextlib.contextmanager
    def lost_node(self, node: str, pod: str = "") -> Iterator[None]:
        """Cut the power of a node, on which `pod` runs, and power it on again at the end."""
        self.stage.kill(node, self.namespace, pod)
        try:
            yield
        finally:
            self.stage.start(node)
            wait_until(f"{node} to be Ready", lambda: self.node_is_ready(node), seconds=120)

    def leader(self) -> str:
        """The pod of the operator that leads; empty where none does."""
        lease = self.kubectl.read("lease", "regroup-operator", "-n", installing.SYSTEM)
        return str(lease["spec"].get("holderIdentity") or "").partition("_")[0]

    @contextlib.contextmanager
    def cordoned_node_of_operator(self) -> Iterator[str]:
        """Inside, no pod comes to the node on which the operator runs that leads; yields its
        name.
        """
        pod = self.kubectl.read("pod", self.leader(), "-n", installing.SYSTEM)
        node = str(pod["spec"]["nodeName"])
        with self.cordoned(node):
            yield node

    @contextlib.contextmanager
    def cordoned(self, *nodes: str) -> Iterator[None]:
        """Inside, no pod comes to these nodes."""
        self.kubectl("cordon", *nodes)
        try:
            yield
        finally:
            self.kubectl("uncordon", *nodes)

    def nodes(self) -> set[str]:
        """The names of all."""
        return {node["metadata"]["name"] for node in self.kubectl.read("nodes")["items"]}

    def node_is_ready(self, name: str) -> bool:
        """What Kubernetes thinks of the node."""
        conditions = self.kubectl.read("node", name)["status"]["conditions"]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    @contextlib.contextmanager
    def without_operator(self) -> Iterator[None]:
        """Inside, no replica of the operator runs."""
        (found,) = self.kubectl.read("deployments", "-n", installing.SYSTEM)["items"]
        self.scale_operator(0)
        try:
            yield
        finally:
            self.scale_operator(found["spec"]["replicas"])

    def scale_operator(self, replicas: int) -> None:
        """Stop or start the operator, and wait until it is so."""
        where = ("-n", installing.SYSTEM)
        self.kubectl(
            "scale",
            "deployment",
            "-l",
            "app.kubernetes.io/part-of=regroup",
            *where,
            f"--replicas={replicas}",
        )

        def done() -> bool:
            listing = self.kubectl.read("pods", *where, "-l", "app.kubernetes.io/part-of=regroup")[
                "items"
            ]
            return len([pod for pod in listing if pod["status"]["phase"] == "Running"]) == replicas

        wait_until(f"{replicas} operators", done, seconds=60)

    def claim(self, name: str, namespace: str, **spec: Any) -> None:
        """A claim that all nodes can write."""
        claim = shared_claim(**spec)
        claim["metadata"]["name"] = name
        self.kubectl.apply(claim, namespace=namespace)

    def small_volume(self, name: str, mebibytes: int) -> str:
        """A claim on a volume that holds no more; returns its name."""
        self._devcluster().add_volume(name, f"{mebibytes}Mi")
        size = {"requests": {"storage": f"{mebibytes}Mi"}}
        self.claim(name, self.namespace, storageClassName=name, resources=size)
        return name

    def address_of_machine(self) -> str:
        """The address under which pods reach a server of this test."""
        return self._devcluster().plane.block.host

    def process_of_rank(self, job: Job, rank: int) -> int:
        """The process on this machine that is a rank of the job."""

        def found() -> int | None:
            own = (pid for pod in job.workers() for pid in self.processes(pod))
            named = (pid for pid in own if read_proc(pid, "comm").strip() == f"rank-{rank}")
            return next(named, None)

        return wait_until(f"the process of rank {rank}", found, seconds=30)

    def processes(self, pod: Mapping[str, Any]) -> list[int]:
        """The processes of a pod, by their numbers on this machine."""
        node = self._devcluster().node(str(pod["spec"]["nodeName"])).node
        return node.pod_processes(pod["metadata"]["uid"])

    @contextlib.contextmanager
    def without_api_server(self) -> Iterator[None]:
        """The API server is away; nodes and pods run on."""
        cluster = self._devcluster()
        cluster.stop_api_server()
        try:
            yield
        finally:
            cluster.start_api_server()
            self._wait_for_controllers()

    @contextlib.contextmanager
    def unresponsive_name_server(self) -> Iterator[None]:
        """The cluster's name server does not answer, as when its node has lost its power."""
        pid = self._devcluster().processes.pid("coredns")
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    @contextlib.contextmanager
    def busy_machine(self) -> Iterator[None]:
        """Processes that only compute take most of the cores that all nodes share; they end by
        themselves after a minute and a half.
        """
        hogs = Hogs(self._devcluster())
        hogs.start()
        began, before = time.monotonic(), hogs.computed()
        try:
            yield
            seconds = min(time.monotonic() - began, LONGEST_SECONDS)
            share = (hogs.computed() - before) / (seconds * (os.cpu_count() or 1))
            assert share > LEAST_SHARE or seconds == LONGEST_SECONDS, f"{share:.0%} were taken"
        finally:
            hogs.end()

    def _wait_for_controllers(self) -> None:
        """Wait until Kubernetes' own controllers have reconnected to the API server.

        They take up to a minute. An object that is made before then waits longer.
        """
        namespace = f"{self.namespace}-after"
        spec = {"selector": {"no": "pod"}, "ports": [{"port": 1}]}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "any"}, "spec": spec}
        self.kubectl.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        )
        self.kubectl.apply(service, namespace=namespace)

        def made() -> bool:
            kinds = ("serviceaccounts", "endpointslices")
            return all(self.kubectl.read(kind, "-n", namespace)["items"] for kind in kinds)

        wait_until("the controllers", made, seconds=150)
        names = [node["metadata"]["name"] for node in self.kubectl.read("nodes")["items"]]
        wait_until("the nodes", lambda: all(map(self.node_is_ready, names)), seconds=60)
        self.kubectl("delete", "namespace", namespace, "--wait=false")

    def _devcluster(self) -> Cluster:
        if not isinstance(self.stage, DevclusterStage):
            pytest.skip("only a devcluster can be reached into")
        return self.stage.cluster

    def audit(self, job: Job) -> list[str]:
        """What is wrong with the samples that the job trained on."""
        return self.volume(job).audit()

    def committed_steps(self, job: Job) -> int:
        """Steps committed, read from the volume."""
        return len(self.volume(job).committed())

    def generations(self, job: Job) -> int:
        """How many generations have begun."""
        return len(self.resumed_from(job))

    def resumed_from(self, job: Job) -> list[int]:
        """The step that each generation began with."""
        files = sorted(
            self.volume(job).layout.lineage.glob("*.json"), key=lambda path: path.stat().st_mtime_ns
        )
        return [json.loads(path.read_text())["resumed_from_step"] for path in files]

    def _worker(self, job: Job, rank: int) -> dict[str, Any]:
        def ranked() -> dict[str, Any] | None:
            return next((w for w in job.status().get("workers", ()) if w.get("rank") == rank), None)

        return wait_until(f"the worker of rank {rank}", ranked, seconds=30)

    def volume(self, job: Job) -> Volume:
        """What the job writes."""
        folder = self.stage.volume(self.namespace) / self.namespace
        return Volume(folder / f"{job.name}-{job.read()['metadata']['uid'][:8]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows its jobs and the operator's logs."""
    report = yield
    found = item.funcargs.get("installation")
    if report.failed and call.when == "call" and isinstance(found, Installation):
        report.sections.extend(look_at(found.kubectl, found.namespace))
    return report


@pytest.fixture(scope="package")
def stage() -> Iterator[Stage]:
    """The cluster with images and chart. A devcluster is taken down after the last test here."""
    screen = Screen()
    kind = os.environ.get("CLUSTER", "devcluster")
    built = installing.build_images(screen)
    made: contextlib.AbstractContextManager[Stage] = (
        new_devcluster(NAME)
        if kind == "devcluster"
        else contextlib.nullcontext(STAGES[kind](screen))
    )
    with made as stage:
        installing.install(stage, built, screen)
        yield stage


@contextlib.contextmanager
def new_devcluster(name: str) -> Iterator[DevclusterStage]:
    """Without what a run that was killed may have left: its jobs would train beside the tests.

    Within, this process weighs as much as all nodes. The user of a cluster has a machine of their
    own, and a kubectl beside jobs that keep all cores busy took 2 s.
    """
    remove(name)
    with cgroups.inside(f"regroup/{name}-user"):
        stage = DevclusterStage.up(Screen(), name)
        try:
            yield stage
        finally:
            stage.cluster.down()


@pytest.fixture
def bare_installation() -> Iterator[Installation]:
    """A namespace with the claim `shared`, on a devcluster of its own without Regroup."""
    with new_devcluster(f"bare{NAME}") as stage:
        installing.make_namespace(stage, "team")
        yield Installation(stage, "team")


@pytest.fixture
def installation(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Installation]:
    """A namespace with the claim `shared`; its jobs are deleted after the test."""
    namespace = f"t-{abs(hash(request.node.name)) % 10**8}"
    installing.make_namespace(stage, namespace)
    found = Installation(stage, namespace)
    try:
        yield found
    finally:
        for job in found.started:
            job.discard()
        stage.kubectl("delete", "namespace", namespace, "--wait=false")
