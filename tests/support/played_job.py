"""A job of a played cluster, whose failures are counted beside those that its status counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.support.kube_api import Json
from tests.support.played_cluster import PlayedCluster, index
from tests.support.specs import SMALLEST
from tests.support.waiting import wait_until

WORKERS = 3
RESTARTING = {**SMALLEST, "restartPolicy": {"maxRestarts": -1, "backoffSeconds": 0}}
WAIT_SECONDS = 120.0


class PlayedJob:
    """The job `gpt` of three workers, with scheduler, kubelets and a coordinator."""

    def __init__(self, cluster: PlayedCluster) -> None:
        assert cluster.namespace.create(RESTARTING).status == 201
        self._cluster = cluster
        self.failed = 0
        """Workers that were made to fail."""

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Let the cluster go on until it holds."""

        def look() -> bool:
            self._cluster.play()
            return bool(holds())

        wait_until(what, look, seconds=WAIT_SECONDS)

    def is_whole(self) -> bool:
        """Whether it has exactly its pods, and all failures are counted."""
        return self._cluster.is_whole("gpt", WORKERS, self.failed)

    def until_whole(self) -> None:
        """Let the cluster go on until it is."""
        self.until("a whole job", self.is_whole)

    def live(self) -> list[Json]:
        """Its pods that may run; at most one of a worker, and one coordinator."""
        found = self._cluster.live("gpt")
        counts = Counter(map(index, found))
        assert all(count == 1 for count in counts.values()), counts
        return found

    def fail(self, worker: int) -> None:
        """Its pod ends with an error."""
        (pod,) = (pod for pod in self._cluster.live("gpt") if index(pod) == worker)
        self.failed += 1
        self._cluster.fail(pod)

    def uids(self) -> dict[str, str]:
        """Of the pods that may run, by name."""
        live = self._cluster.live("gpt")
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in live}

    def status(self) -> Json:
        """As the API server has it."""
        status: Json = self._cluster.namespace.read()["status"]
        return status
