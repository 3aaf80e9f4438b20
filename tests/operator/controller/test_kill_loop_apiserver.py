"""The operator is killed over and over, on a real API server: at a write that is drawn, before or
after it is carried out, or at a moment that is drawn. Meanwhile pods fail and are deleted. Each
failure is counted once, and no pod is made twice.

SEED=7 draws another course.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.faulty_proxy import FaultyProxy, Sent
from tests.support.kube_api import Api, Namespace
from tests.support.operator_process import LEASE, OperatorProcess, installed_operator
from tests.support.played_cluster import PlayedCluster, index
from tests.support.played_job import PlayedJob

pytestmark = [pytest.mark.apiserver, pytest.mark.long, pytest.mark.timeout(900)]

SEED = int(os.environ.get("SEED", "1"))
KILLS = 12
MOST_WRITES = 8
"""About as many as follow a loss: status, Secret, pods, Events."""
LONGEST_LIFE = 5.0
"""Seconds of a process that is killed at a moment; it needs about two until it leads."""


class Kill:
    """One kill, drawn: at a write of the process, or so many seconds after its start."""

    def __init__(self, draw: random.Random, operator: OperatorProcess) -> None:
        self._operator = operator
        self._write = draw.randint(1, MOST_WRITES)
        self._once_carried_out = draw.random() < 0.5
        self._seconds = draw.uniform(0, LONGEST_LIFE) if draw.random() < 0.25 else None
        self._began = time.monotonic()
        self._writes = 0
        self._struck: Sent | None = None
        """The write at which it is killed; others may be under way."""

    def strikes_at(self, sent: Sent, carried_out: bool) -> bool:
        """Kill it if this is the write; those for the Lease do not count."""
        if self._seconds is not None or "/leases" in sent.path:
            return False
        self._writes += not carried_out
        if self._writes == self._write and not carried_out:
            self._struck = sent
        strikes = sent is self._struck and carried_out == self._once_carried_out
        if strikes:
            self._operator.send(signal.SIGKILL)
        return strikes

    def is_due(self) -> bool:
        """Whether the moment has come."""
        return self._seconds is not None and time.monotonic() >= self._began + self._seconds

    def __str__(self) -> str:
        when = "after" if self._once_carried_out else "before"
        at_write = f"{when} write {self._write} of {self._writes}"
        return at_write if self._seconds is None else f"after {self._seconds:.2f} s"


class Course:
    """What happens to one job, drawn by seed."""

    def __init__(self, seed: int, cluster: PlayedCluster) -> None:
        self.job, self._cluster = PlayedJob(cluster), cluster
        self.draw = random.Random(seed)

    def lose_something(self) -> str:
        """Workers fail, or one is deleted, or the coordinator fails; of those that there are."""
        self._cluster.play()
        workers = [pod for pod in self.job.live() if index(pod) >= 0]
        leaders = [pod for pod in self.job.live() if index(pod) < 0]
        what = self.draw.choice(["fail", "fail", "delete", "lead"])
        if what == "lead" and leaders:
            self._cluster.fail(leaders[0], reason="Evicted")
            return "a lost coordinator"
        if what == "delete" and workers:
            self._cluster.delete(self.draw.choice(workers))
            return "a deleted worker"
        failing = self.draw.sample(workers, min(len(workers), self.draw.randint(1, 2)))
        for pod in failing:
            self.job.fail(index(pod))
        return f"{len(failing)} failed workers"


@pytest.fixture
def killed(api: Api, proxy: FaultyProxy, tmp_path: Path) -> Iterator[OperatorProcess]:
    """The operator, behind the proxy. It has shown no error of its own."""
    api.request("DELETE", LEASE)
    operator = installed_operator(api, tmp_path)
    proxy.kubeconfig_of(tmp_path / "kubeconfig")
    yield operator
    operator.end()
    api.request("DELETE", LEASE)
    assert "Traceback" not in operator.log.read_text()


@pytest.mark.parametrize("seed", [SEED])
def test_each_failure_is_counted_once_wherever_the_operator_is_killed(
    seed: int, api: Api, namespace: Namespace, proxy: FaultyProxy, killed: OperatorProcess
) -> None:
    with PlayedCluster(namespace) as cluster:
        course = Course(seed, cluster)
        killed.start()
        course.job.until_whole()
        killed.kill(api)
        for number in range(KILLS):
            lost = course.lose_something()
            kill = Kill(course.draw, killed)
            proxy.breaks_at = kill.strikes_at
            killed.launch()
            what = f"the end of process {number} of seed {seed} after {lost}, {kill}"
            course.job.until(what, partial(has_ended, killed, kill, course.job))
            proxy.breaks_at = None
            print(f"{number}: {lost}; {kill}; {course.job.failed} have failed")
            killed.end()
            api.request("DELETE", LEASE)
        killed.start()
        course.job.until_whole()


def has_ended(operator: OperatorProcess, kill: Kill, job: PlayedJob) -> bool:
    """Whether it was killed, or has nothing more to write, or its moment has come. Meanwhile no
    worker has two pods.
    """
    job.live()
    return operator.exit_code() is not None or kill.is_due() or job.is_whole()
