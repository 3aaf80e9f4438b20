"""The operator behind a proxy that fails in every way, on a real API server: no pod is made twice,
each failure is counted once, no job is lost, and the operator goes on.

SEED=7 draws other courses.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from regroup_operator.leadership.election import EXIT_CODE
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.kube_api import Api, Json, Namespace
from tests.support.operator_process import OperatorProcess, installed_operator
from tests.support.played_cluster import PlayedCluster, index
from tests.support.specs import SMALLEST

pytestmark = [pytest.mark.apiserver, pytest.mark.long, pytest.mark.timeout(900)]

SEED = int(os.environ.get("SEED", "1"))
"""Of the first course; the name of a test has its own."""
JOBS = ("one", "two", "three")
FAULTY_SECONDS = 75.0
CLEAN_SECONDS = 240.0
"""How long the last step of each course may take, once there are no faults."""
MOST_LOSSES = 2
"""Of the Lease in one course. Requests for it fail one after the other for 10 s in one of five."""
SPEC = {**SMALLEST, "restartPolicy": {"maxRestarts": -1, "backoffSeconds": 0}}


class Course:
    """What happens to one job, drawn by seed, one step after the other."""

    def __init__(self, cluster: PlayedCluster, name: str, seed: str) -> None:
        self.name = name
        self.planted = 0
        """Failures of workers since its start, or since it was suspended."""
        self.waits_for = ""
        self.ends = False
        """Whether this step is the last one."""
        self._cluster = cluster
        self._draw = random.Random(seed)
        self._replicas = 3
        self._path = cluster.namespace.jobs(name)

    def run(self) -> Iterator[None]:
        """Yields to let the cluster go on."""
        yield from self._create()
        steps = [self._fail_workers, self._delete_worker, self._fail_coordinator]
        steps += [self._scale, self._suspend, self._create_again]
        while not self.ends:
            yield from self._draw.choice(steps)()

    def is_whole(self) -> bool:
        """Whether it has exactly its pods, and all failures are counted."""
        return self._cluster.is_whole(self.name, self._replicas, self.planted)

    def _until(self, what: str, condition: Callable[[], bool]) -> Iterator[None]:
        self.waits_for = what
        yield
        while not condition():
            yield
        self.waits_for = ""

    def _until_whole(self) -> Iterator[None]:
        yield from self._until("to be whole", self.is_whole)

    def _create(self) -> Iterator[None]:
        self.planted, self._replicas = 0, 3
        assert self._cluster.namespace.create(SPEC, self.name).status == 201
        yield from self._until_whole()

    def _fail_workers(self) -> Iterator[None]:
        live = [pod for pod in self._cluster.live(self.name) if index(pod) >= 0]
        for pod in self._draw.sample(live, self._draw.randint(1, 2)):
            self.planted += 1
            self._cluster.fail(pod)
        yield from self._until_whole()

    def _delete_worker(self) -> Iterator[None]:
        live = [pod for pod in self._cluster.live(self.name) if index(pod) >= 0]
        self._cluster.delete(self._draw.choice(live))
        yield from self._until_whole()

    def _fail_coordinator(self) -> Iterator[None]:
        (leader,) = (pod for pod in self._cluster.live(self.name) if index(pod) < 0)
        self._cluster.fail(leader, reason="Evicted")
        yield from self._until_whole()

    def _scale(self) -> Iterator[None]:
        self._replicas = self._draw.choice([n for n in (2, 3, 4) if n != self._replicas])
        self._change({"replicas": self._replicas})
        yield from self._until_whole()

    def _suspend(self) -> Iterator[None]:
        self._change({"suspend": True})
        yield from self._until("to be suspended", self._is_suspended)
        self.planted = 0
        self._change({"suspend": False})
        yield from self._until_whole()

    def _is_suspended(self) -> bool:
        conditions = self._cluster.status(self.name).get("conditions", [])
        return ("Suspended", "True") in [(c["type"], c["status"]) for c in conditions]

    def _create_again(self) -> Iterator[None]:
        assert self._cluster.namespace.api.request("DELETE", self._path).status == 200
        yield from self._until("to be gone", lambda: self.name not in self._cluster.jobs)
        yield from self._create()

    def _change(self, spec: Json) -> None:
        request = self._cluster.namespace.api.request
        answer = request("PATCH", self._path, {"spec": spec}, "application/merge-patch+json")
        assert answer.status == 200, answer.message


class Judge:
    """What must hold whenever one looks."""

    def __init__(self, cluster: PlayedCluster, proxy: FaultyProxy) -> None:
        self._cluster, self._proxy = cluster, proxy
        self.doubles: set[tuple[str, ...]] = set()
        """Live pods of one worker, or coordinators, that were seen at the same time."""
        self._made: dict[tuple[str, str], str] = {}
        """UID of the job and name of the pod -> UID of the pod."""

    def look(self, courses: list[Course]) -> None:
        for owner, pods in self._cluster.pods.items():
            for pod in pods:
                metadata = pod["metadata"]
                key = owner, metadata["name"]
                assert self._made.setdefault(key, metadata["uid"]) == metadata["uid"], key
        for course in courses:
            if course.name in self._cluster.jobs:
                self._look_at(course)

    def _look_at(self, course: Course) -> None:
        """Two live pods of one worker are those of which one was made late."""
        by_index: defaultdict[int, list[str]] = defaultdict(list)
        for pod in self._cluster.live(course.name):
            by_index[index(pod)].append(pod["metadata"]["name"])
        for names in by_index.values():
            self.doubles |= {tuple(names)} if len(names) > 1 else set()
            assert len(set(names) - self._proxy.late_pods) <= 1, names
        counted = self._cluster.status(course.name).get("podFailures", 0)
        assert counted <= course.planted, (course.name, counted, course.planted)


class Kubelet:
    """Starts operators again that have ended for the one reason that they may have."""

    def __init__(self, operators: list[OperatorProcess]) -> None:
        self.operators = operators
        self.restarts = 0

    def look(self) -> None:
        for operator in self.operators:
            code = operator.exit_code()
            if code is not None:
                assert code in (EXIT_CODE, -signal.SIGKILL), operator.log.read_text()
                self.restarts += 1
                operator.launch()

    def kill_first(self) -> None:
        """The one that leads at the begin: another takes over, or it starts again amid faults."""
        self.operators[0].send(signal.SIGKILL)


@pytest.fixture
def proxy(api: Api, request: pytest.FixtureRequest) -> Iterator[FaultyProxy]:
    with FaultyProxy(api.kubeconfig, request.getfixturevalue("seed")).serving() as proxy:
        yield proxy
    assert not proxy.errors


@pytest.fixture
def kubelet(api: Api, tmp_path: Path, proxy: FaultyProxy, replicas: int) -> Iterator[Kubelet]:
    """So many operators behind the proxy. None has shown an error of its own at the end."""
    (tmp_path / "0").mkdir()
    installed_operator(api, tmp_path / "0")
    proxy.kubeconfig_of(tmp_path / "0/kubeconfig")
    folders = [tmp_path / str(number) for number in range(replicas)]
    operators = []
    with ExitStack() as stack:
        for folder in folders:
            folder.mkdir(exist_ok=True)
            operators.append(OperatorProcess(tmp_path / "0/kubeconfig", folder))
            stack.callback(operators[-1].end)
            operators[-1].start(stands_by=len(operators) > 1)
        yield Kubelet(operators)
    for operator in operators:
        log = operator.log.read_text()
        assert "Traceback" not in log
        assert "the election failed" not in log


class Run:
    """All courses at once, under the eyes of judge and kubelet."""

    def __init__(
        self, cluster: PlayedCluster, proxy: FaultyProxy, kubelet: Kubelet, seed: int
    ) -> None:
        self._cluster, self._kubelet = cluster, kubelet
        self.courses = [Course(cluster, name, f"{seed} {name}") for name in JOBS]
        self.judge = Judge(cluster, proxy)
        self._running = [course.run() for course in self.courses]

    def go_on(self) -> None:
        """One look, and one move of each."""
        self._kubelet.look()
        self._cluster.play()
        self.judge.look(self.courses)
        self._running = [one for one in self._running if next(one, "over") is None]
        time.sleep(0.1)

    def go_on_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.go_on()

    def go_on_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + CLEAN_SECONDS
        while not condition():
            assert time.monotonic() < end, [
                (c.name, c.waits_for, c.planted, self._cluster.status(c.name)) for c in self.courses
            ]
            self.go_on()

    def is_over(self) -> bool:
        """Whether all courses are, and left a whole job each."""
        return not self._running and all(course.is_whole() for course in self.courses)

    def live_pods(self) -> set[str]:
        """UIDs."""
        return {pod["metadata"]["uid"] for name in JOBS for pod in self._cluster.live(name)}

    def all_run(self) -> bool:
        return {self._cluster.status(name).get("phase") for name in JOBS} == {"Running"}


@pytest.mark.parametrize(("seed", "replicas"), [(SEED, 1), (SEED + 1, 2), (SEED + 2, 2)])
def test_whatever_the_api_server_answers_jobs_are_whole_and_all_is_counted_once(
    seed: int, replicas: int, namespace: Namespace, proxy: FaultyProxy, kubelet: Kubelet
) -> None:
    with PlayedCluster(namespace) as cluster:
        run = Run(cluster, proxy, kubelet, seed)
        killed_after = random.Random(f"{seed} kill").uniform(0.1, 0.6) * FAULTY_SECONDS
        proxy.begin_faults()
        run.go_on_for(killed_after)
        kubelet.kill_first()
        run.go_on_for(FAULTY_SECONDS - killed_after)
        proxy.end_faults()
        for course in run.courses:
            course.ends = True
        run.go_on_until(lambda: run.is_over() and not proxy.has_late)
        made, cluster.phase = run.live_pods(), "running"
        run.go_on_until(run.all_run)
        assert run.live_pods() == made
        assert {fault.name for fault in Fault} <= proxy.counts.keys()
        assert 1 <= kubelet.restarts <= 1 + MOST_LOSSES, "one was killed"
        print(f"{dict(proxy.counts)}, {kubelet.restarts} restarts")
        print(f"late pods: {sorted(proxy.late_pods)}, two at a time: {run.judge.doubles}")
