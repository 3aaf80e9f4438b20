"""Many jobs on a real API server whose coordinators answer: the fleet, and what stands in for
scheduler and kubelets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.support.coordinator_fleet import CoordinatorFleet
from tests.support.kube_api import Json, Namespace
from tests.support.operator_process import (
    NODES,
    Kubelets,
    make_claim,
    make_node,
    renewed_leases,
)
from tests.support.specs import SMALLEST, put
from tests.support.waiting import wait_until

SPEC = put(put(SMALLEST, "replicas", 1), "elasticPolicy", None)
AT_ONCE = 8
"""Requests to the API server."""


class CoordinatedJobs:
    """Jobs job0x1, job1x1, ..., the coordinators of which are in one other process. Those of the
    next start are job0x2, job1x2, ...: nobody removes here what the former ones owned.
    """

    def __init__(self, namespace: Namespace, fleet: CoordinatorFleet) -> None:
        self.fleet = fleet
        self._namespace = namespace
        self._kubelets = Kubelets(namespace)
        self._starts = 0

    def statuses(self) -> list[Json]:
        """Of all jobs."""
        jobs = self._namespace.api.list_all(self._namespace.jobs())
        return [job.get("status", {}) for job in jobs]

    def coordinators(self) -> list[str]:
        """The names of all coordinator pods."""
        return sorted(self._kubelets.pods("coordinator"))

    def until_each(self, what: str, holds: Callable[[Json], bool], seconds: float = 120) -> None:
        """Wait until it holds of the status of each job, at the same time."""

        def lacking() -> int:
            return sum(not holds(status) for status in self.statuses())

        wait_until(what, lambda: not lacking(), seconds)

    def start(self, seconds: float) -> None:
        """Create them, run their coordinators, and wait until each is followed."""
        numbers = range(len(self.fleet.addresses))
        self._starts += 1
        _at_once(lambda n: self._namespace.create(SPEC, self.name(n)), numbers)
        waiting = dict(enumerate(self.fleet.addresses))

        def run_coordinators() -> bool:
            pods = self._kubelets.pods()
            now = [
                n
                for n in waiting
                if f"{self.name(n)}-c1" in pods and f"{self.name(n)}-w0-1" in pods
            ]
            for number in now:
                worker = pods[f"{self.name(number)}-w0-1"]
                self.fleet.trains(waiting[number], worker["metadata"]["uid"])
            _at_once(lambda n: self._run(n, waiting[n]), now)
            for number in now:
                del waiting[number]
            return not waiting

        wait_until("all coordinators to run", run_coordinators, seconds)
        self.until_each("all jobs to train", is_followed, seconds)

    def run_worker(self, number: int, address: str) -> None:
        """Run the worker of a job, on another node than its coordinator: its agent is at the
        address.
        """
        self._kubelets.run(f"{self.name(number)}-w0-1", NODES[(number + 1) % len(NODES)], address)

    def move_coordinator(self, number: int, address: str) -> None:
        """Say that the pod of a job's coordinator has another address."""
        status = {"podIP": address, "podIPs": [{"ip": address}]}
        self._kubelets.write(f"{self.name(number)}-c1", status)

    def name(self, number: int) -> str:
        """Of a job."""
        return f"job{number}x{self._starts}"

    def remove_all(self, seconds: float) -> None:
        """Delete them, and what they own as the garbage collector does; wait until all is gone."""
        api, namespace = self._namespace.api, self._namespace
        for number in range(len(self.fleet.addresses)):
            api.request("DELETE", namespace.jobs(self.name(number)))
        wait_until("all jobs to be gone", lambda: not self.statuses(), seconds)
        for path in (*map(namespace.core, ("pods", "services", "secrets")), *self._owned_elsewhere):
            for name in self._names(path):
                api.request("DELETE", f"{path}/{name}?gracePeriodSeconds=0")
        wait_until("all pods to be gone", lambda: not self._kubelets.pods(), seconds)

    @property
    def _owned_elsewhere(self) -> list[str]:
        kinds = ("networking.k8s.io/v1", "networkpolicies"), ("policy/v1", "poddisruptionbudgets")
        return [f"/apis/{group}/namespaces/{self._namespace.name}/{kind}" for group, kind in kinds]

    def _names(self, path: str) -> list[str]:
        """Of the objects at a path that belong to jobs."""
        found = self._namespace.api.list_all(path)
        return [one["metadata"]["name"] for one in found if one["metadata"].get("ownerReferences")]

    def _run(self, number: int, address: str) -> None:
        self._kubelets.run(f"{self.name(number)}-c1", NODES[number % len(NODES)], address)


def is_followed(status: Json) -> bool:
    """Whether the coordinator of this job answers, and the message says so."""
    return status.get("phase") == "Running" and "does not answer" not in status["message"]


def is_kept_unanswered(status: Json) -> bool:
    """Whether the coordinator does not answer, and the message says so."""
    return "does not answer" in status["message"]


def is_in_an_outage(status: Json) -> bool:
    """Whether the message says that many coordinators stopped answering at once."""
    return "Many coordinators stopped answering at once" in status["message"]


@contextmanager
def coordinated_jobs(
    namespace: Namespace, count: int, seconds: float = 120
) -> Iterator[CoordinatedJobs]:
    """Inside, so many jobs train, as their coordinators report."""
    for node in NODES:
        make_node(namespace.api, node)
    make_claim(namespace)
    with CoordinatorFleet(count) as fleet, renewed_leases(namespace.api, NODES):
        jobs = CoordinatedJobs(namespace, fleet)
        jobs.start(seconds)
        yield jobs


def _at_once(do: Callable[[int], object], numbers: Iterable[int]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(do, numbers))
