"""Stands in for the nodes of a cluster: it runs the coordinators and workers of jobs as processes
of this machine, each pod with a loopback address of its own.
"""

from __future__ import annotations

import base64
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from regroup.local.processes import descendants, dies_with
from regroup_trainer.protocol.exit_codes import KILLED
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import Kubelets

LOOK_SECONDS = 0.2
METRICS_PORT = 8500
"""Of the first pod; each further one has the next port, since agents listen on all addresses."""


@dataclass
class RunningPod:
    """A pod, and the process that is its main container."""

    pod: Json
    namespace: Namespace
    node: str
    address: str
    port: int
    """Of its metrics."""
    process: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def is_worker(self) -> bool:
        return str(self.pod["metadata"]["labels"]["regroup.dev/role"]) == "worker"


class Machine:
    """A context manager. Inside, each pod of the namespaces runs, but those of the jobs for which
    there is no room.
    """

    def __init__(self, namespaces: list[Namespace], nodes: list[str], folder: Path) -> None:
        self._kubelets = {one.name: Kubelets(one) for one in namespaces}
        self._nodes, self._folder = nodes, folder
        self._dead: set[str] = set()
        self._pods: dict[str, RunningPod] = {}
        """By the pod's UID."""
        self._refused: set[str] = set()
        self._begun = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self.refusals: dict[str, Callable[[str, Kubelets], None]] = {}
        """Name of a job -> what happens to its pods instead of being run, by their names."""

    def __enter__(self) -> Machine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for running in self._pods.values():
            end(running)

    def live(self) -> list[RunningPod]:
        """The pods that run on nodes with power."""
        pods = list(self._pods.values())
        return [one for one in pods if one.node not in self._dead and one.process.poll() is None]

    def of(self, job: str, role: str) -> list[RunningPod]:
        """The live pods of a job in a role."""
        wanted = {"regroup.dev/job": job, "regroup.dev/role": role}
        return [
            one for one in self.live() if wanted.items() <= one.pod["metadata"]["labels"].items()
        ]

    def cut_power(self, node: str) -> None:
        """End what runs on a node, and report nothing of it."""
        self._dead.add(node)
        for running in list(self._pods.values()):
            if running.node == node:
                end(running)

    def restore_power(self, node: str) -> None:
        """The node's kubelet reports what has become of its pods."""
        self._dead.remove(node)

    def kill_rank(self, job: str, rank: int) -> None:
        """Kill the process of a rank."""
        for running in self.of(job, "worker"):
            for pid in descendants(running.process.pid):
                with contextlib.suppress(OSError):  # it may have ended
                    if Path(f"/proc/{pid}/comm").read_text().strip() == f"rank-{rank}":
                        os.kill(pid, signal.SIGKILL)

    def _follow(self) -> None:
        while not self._ends.wait(LOOK_SECONDS):
            for kubelets in self._kubelets.values():
                self._look(kubelets)

    def _look(self, kubelets: Kubelets) -> None:
        """Start new pods, report those that have ended, and remove those that are deleted."""
        namespace = kubelets.namespace
        for pod in namespace.api.list_all(namespace.core("pods")):
            running = self._pods.get(pod["metadata"]["uid"])
            if running is None:
                self._admit(pod, kubelets)
            elif running.node in self._dead:
                continue
            elif "deletionTimestamp" in pod["metadata"]:
                self._remove(running)
            elif running.process.poll() is not None and pod["status"]["phase"] == "Running":
                self._report_end(running, kubelets)

    def _admit(self, pod: Json, kubelets: Kubelets) -> None:
        labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
        if refuse := self.refusals.get(labels["regroup.dev/job"]):
            if name not in self._refused:
                self._refused.add(name)
                refuse(name, kubelets)
            return
        if "deletionTimestamp" in pod["metadata"] or not (node := self._node_for(labels)):
            return
        kubelets.bind(name, node)
        self._begun += 1
        is_worker = labels["regroup.dev/role"] == "worker"
        address = f"127.22.{1 + self._begun // 200}.{1 + self._begun % 200}"
        address = address if is_worker else coordinator_address(labels["regroup.dev/job"])
        place = (node, address, METRICS_PORT + self._begun)
        process = self._start(pod, kubelets.namespace, place)
        running = RunningPod(pod, kubelets.namespace, *place, process)
        self._pods[pod["metadata"]["uid"]] = running
        kubelets.run_bound(name, address)

    def _node_for(self, labels: Json) -> str | None:
        """A node with power that runs no pod of this job in this role."""
        taken = {one.node for one in self.of(labels["regroup.dev/job"], labels["regroup.dev/role"])}
        free = [node for node in self._nodes if node not in self._dead | taken]
        # Coordinators begin at the end, so that rank 0 is elsewhere.
        return (free[0] if labels["regroup.dev/role"] == "worker" else free[-1]) if free else None

    def _start(
        self, pod: Json, namespace: Namespace, place: tuple[str, str, int]
    ) -> subprocess.Popen[bytes]:
        folder = self._folder / pod["metadata"]["name"]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "token").write_text(token(pod, namespace))
        is_worker = pod["metadata"]["labels"]["regroup.dev/role"] == "worker"
        module = "agent" if is_worker else "coordinator"
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", f"regroup_trainer.{module}"],
                env={**os.environ, **variables(pod, place, folder)},
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509
            )

    def _remove(self, running: RunningPod) -> None:
        """End a pod that is deleted as a kubelet does: it may save first."""
        if running.process.poll() is None:
            running.process.terminate()
            return
        path = running.namespace.core(f"pods/{running.name}")
        running.namespace.api.request("DELETE", path, {"gracePeriodSeconds": 0})

    def _report_end(self, running: RunningPod, kubelets: Kubelets) -> None:
        code = running.process.returncode
        if not running.is_worker and code:  # restartPolicy: Always
            place = (running.node, running.address, running.port)
            running.process = self._start(running.pod, running.namespace, place)
            return
        name = running.pod["spec"]["containers"][0]["name"]
        reason = "Error" if code else "Completed"
        ended = {"exitCode": KILLED if code < 0 else code, "reason": reason}
        shown = {"name": name, "image": "a", "imageID": "", "ready": False, "restartCount": 0}
        containers = [{**shown, "state": {"terminated": ended}}]
        phase = "Failed" if code else "Succeeded"
        kubelets.write(running.name, {"phase": phase, "containerStatuses": containers})


def coordinator_address(job: str) -> str:
    """Where the coordinators of a job are, one after another: it stands for their Service's."""
    return f"127.22.0.{1 + sum(job.encode()) % 250}"


def token(pod: Json, namespace: Namespace) -> str:
    """What the pod would find in its Secret."""
    volumes = pod["spec"]["volumes"]
    (name,) = [one["secret"]["secretName"] for one in volumes if "secret" in one]
    secret = namespace.api.request("GET", namespace.core(f"secrets/{name}")).body
    return base64.b64decode(secret["data"]["token"]).decode()


def variables(pod: Json, place: tuple[str, str, int], folder: Path) -> dict[str, str]:
    """The pod's environment, with what differs where pods share a machine."""
    node, address, port = place
    metadata = pod["metadata"]
    fields = {
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "metadata.name": metadata["name"],
        "spec.nodeName": node,
        "status.podIP": address,
    }
    given = {
        one["name"]: one["value"] if "value" in one else fields[path_of(one)]
        for one in pod["spec"]["containers"][0]["env"]
    }
    ours = {
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "OMP_NUM_THREADS": "1",
        "REGROUP_TOKEN_FILE": str(folder / "token"),
        "REGROUP_KEPT_FILE": str(folder / "kept"),
        "REGROUP_ADDRESS": address,
        "REGROUP_METRICS_PORT": str(port),
        "REGROUP_TERMINATION_LOG": str(folder / "termination"),
        "REGROUP_SCRATCH": str(folder),
        "REGROUP_COORDINATOR_URL": (
            f"http://{coordinator_address(metadata['labels']['regroup.dev/job'])}:8471"
        ),
    }
    return {**given, **ours}


def path_of(variable: Json) -> str:
    """The field of the pod that a variable is filled from."""
    return str(variable["valueFrom"]["fieldRef"]["fieldPath"])


def end(running: RunningPod) -> None:
    """End a pod as a power failure would."""
    with contextlib.suppress(ProcessLookupError):
        for pid in [running.process.pid, *descendants(running.process.pid)]:
            os.kill(pid, signal.SIGKILL)
    running.process.wait()


def targets(pods: list[RunningPod]) -> Iterator[Json]:
    """The pods as targets for Prometheus' file discovery."""
    for one in pods:
        port = one.port if one.is_worker else 8471
        labels = {"pod": one.name, "namespace": one.namespace.name}
        yield {"targets": [f"{one.address}:{port}"], "labels": labels}
