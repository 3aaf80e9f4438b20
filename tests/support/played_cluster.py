"""Stands in for what a namespace of jobs has in a cluster: scheduler, kubelets, coordinators and
the garbage collector.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import Any

from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.job_status import CoordinatorPhase, MemberStatus, Outcome
from tests.support.coordinator_stub import CoordinatorStub
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import NODES, Kubelets, make_claim, make_node, member
from tests.support.operator_simulation import make_coordinator_status

_OWNED = {
    "services": "/api/v1",
    "secrets": "/api/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
}
Looked = dict[str, list[Json]]
"""UID of a job -> its pods."""


class PlayedCluster:
    """A context manager. Whoever uses it calls `play` again and again."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.kubelets = Kubelets(namespace)
        self.phase: CoordinatorPhase = "recovering"
        """That coordinators report. While it is not `running`, the operator forgives no failure."""
        self.jobs: dict[str, Json] = {}
        """Name -> the TrainingJob, as `play` has seen it."""
        self.pods: Looked = {}
        self._stubs: dict[str, _PlayedCoordinator] = {}
        """UID of the pod -> its coordinator."""
        self._orphans = 0

    def __enter__(self) -> PlayedCluster:
        for node in NODES:
            make_node(self.namespace.api, node)
        make_claim(self.namespace)
        return self

    def __exit__(self, *_: object) -> None:
        for stub in self._stubs.values():
            stub.close()

    def play(self) -> None:
        """Look, and do what each of them does about what there is."""
        api = self.namespace.api
        pods = api.list_all(self.namespace.core("pods"))
        jobs = api.list_all(self.namespace.jobs())  # afterwards: an owner is older than its pods
        self.jobs = {job["metadata"]["name"]: job for job in jobs}
        uids = {job["metadata"]["uid"] for job in jobs}
        found: defaultdict[str, list[Json]] = defaultdict(list)
        for pod in pods:
            owner = pod["metadata"]["ownerReferences"][0]["uid"]
            if "deletionTimestamp" in pod["metadata"] or owner not in uids:
                self.delete(pod)
            else:
                found[owner].append(pod)
        self.pods = dict(found)
        for pod in (pod for of_job in self.pods.values() for pod in of_job):
            if pod["status"]["phase"] == "Pending":
                self._run(pod)
        self._lead()
        self._collect()

    def live(self, name: str) -> list[Json]:
        """Pods of a job that may run, as `play` has seen them."""
        uid = self.jobs[name]["metadata"]["uid"]
        return [p for p in self.pods.get(uid, []) if p["status"]["phase"] in ("Pending", "Running")]

    def status(self, name: str) -> Json:
        """Of a job, as `play` has seen it."""
        status: Json = self.jobs[name].get("status", {})
        return status

    def is_whole(self, name: str, replicas: int, failures: int) -> bool:
        """Whether a job has exactly its pods, which run, and has counted so many failures, as
        `play` has seen it.
        """
        if name not in self.jobs:
            return False
        live, status = self.live(name), self.status(name)
        terms = [pod["metadata"]["labels"]["regroup.dev/term"] for pod in live if index(pod) < 0]
        return (
            Counter(map(index, live)) == Counter([*range(replicas), -1])
            and {pod["status"]["phase"] for pod in live} == {"Running"}
            and terms == [str(status.get("coordinatorTerm"))]
            and status.get("podFailures", 0) == failures
        )

    def fail(self, pod: Json, reason: str = "") -> None:
        """The program of a pod ends with an error."""
        labels = pod["metadata"]["labels"]
        name = "trainer" if labels["regroup.dev/role"] == "worker" else "coordinator"
        ended = {"exitCode": 1, "reason": "Error", "message": "boom"}
        shown = {"name": name, "image": "a", "imageID": "", "ready": False, "restartCount": 0}
        containers = [{**shown, "state": {"terminated": ended}}]
        status = {"phase": "Failed", "reason": reason, "containerStatuses": containers}
        self.kubelets.write(pod["metadata"]["name"], status)

    def delete(self, pod: Json) -> None:
        """Remove a pod at once, if it is the one that was seen."""
        metadata = pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        path = self.namespace.core(f"pods/{metadata['name']}")
        self.namespace.api.request("DELETE", path, options)

    # --- kubelets and coordinators ----------------------------------------------------------------

    def _run(self, pod: Json) -> None:
        metadata = pod["metadata"]
        node = NODES[sum(metadata["uid"].encode()) % len(NODES)]
        if not self.kubelets.bind(metadata["name"], node):
            return  # it is gone
        if metadata["labels"]["regroup.dev/role"] == "worker":
            self.kubelets.run_bound(metadata["name"])
            return
        stub = _PlayedCoordinator(int(metadata["labels"]["regroup.dev/term"]))
        self._stubs[metadata["uid"]] = stub
        self.kubelets.run_bound(metadata["name"], stub.address)

    def _lead(self) -> None:
        """Let each coordinator report the workers that run, and do what it is asked. One that has
        no pod ends.
        """
        led = set()
        for of_job in self.pods.values():
            workers = [p for p in of_job if p["status"]["phase"] == "Running" and index(p) >= 0]
            for uid in (pod["metadata"]["uid"] for pod in of_job):
                if uid in self._stubs:
                    led.add(uid)
                    self._stubs[uid].lead(workers, self.phase)
        for uid in self._stubs.keys() - led:
            self._stubs.pop(uid).close()

    # --- the garbage collector --------------------------------------------------------------------

    def _collect(self) -> None:
        """Delete objects of jobs that are gone. Looks at a kind each time."""
        self._orphans += 1
        kind, api = list(_OWNED.items())[self._orphans % len(_OWNED)]
        path = f"{api}/namespaces/{self.namespace.name}/{kind}"
        found = self.namespace.api.list_all(path)
        jobs = self.namespace.api.list_all(self.namespace.jobs())  # afterwards, as above
        alive = {job["metadata"]["uid"] for job in jobs}
        for item in found:
            references = item["metadata"].get("ownerReferences", ())
            if references and not {owner["uid"] for owner in references} & alive:
                self.namespace.api.request("DELETE", f"{path}/{item['metadata']['name']}")


class _PlayedCoordinator:
    """A coordinator of one term, which gives a rank to the first worker of each index."""

    def __init__(self, term: int) -> None:
        self._serving = ExitStack()
        generation = GenerationNumber(term, 1)
        status = make_coordinator_status(term=term, phase="recovering", generation=generation)
        self._stub = self._serving.enter_context(CoordinatorStub(status))
        self.address = self._stub.address
        self._ranks: dict[int, str] = {}
        """Index -> UID of the worker that has a rank."""
        self._reported: dict[str, Any] = {}

    def close(self) -> None:
        self._serving.close()

    def lead(self, workers: list[Json], phase: CoordinatorPhase) -> None:
        """Report these workers; or the end, if the job is to be suspended."""
        desired = self._stub.desired
        members = self._members(workers)
        changes: dict[str, Any] = {"members": members, "world_size": len(self._ranks)}
        changes["phase"] = phase
        if desired and desired[-1].suspend:
            outcome = Outcome(result="suspended", message="saved")
            changes |= {"phase": "suspended", "outcome": outcome}
        if changes != self._reported:
            self._stub.report(**changes)
            self._reported = changes

    def _members(self, workers: list[Json]) -> tuple[MemberStatus, ...]:
        here = {pod["metadata"]["uid"] for pod in workers}
        self._ranks = {index: uid for index, uid in self._ranks.items() if uid in here}
        for pod in workers:
            self._ranks.setdefault(index(pod), pod["metadata"]["uid"])
        return tuple(
            member(pod, index(pod) if pod["metadata"]["uid"] in self._ranks.values() else None)
            for pod in workers
        )


def index(pod: Json) -> int:
    """Of a worker; -1: the pod is a coordinator."""
    return int(pod["metadata"]["labels"].get("regroup.dev/index", -1))
