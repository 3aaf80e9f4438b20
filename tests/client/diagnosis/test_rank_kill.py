"""Which process is the one of a rank, and what happens without one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from regroup.diagnosis.rank_kill import kill_rank, pod_of_rank
from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.pod_channels import CommandOutput
from regroup.kubernetes.pod_record import PodRecord, read_pods
from tests.support.cluster_objects import job_record, running_status

FORKED = """\
import os, sys
from regroup_trainer.system.child_process import name_process
name_process("rank-73211")
child = os.fork()
if child:
    os.setpgid(0, 0)
os.write(1, f"{os.getpid()}\\n".encode())  # at once: both write to one pipe
sys.stdin.read()
"""


class OwnMachine:
    """Runs commands of a pod on this machine."""

    def run_in_pod(
        self, namespace: str, pod: PodRecord, words: Sequence[str], seconds: float
    ) -> CommandOutput:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        return CommandOutput(done.stdout, done.stderr, done.returncode)


@contextmanager
def started(program: str) -> Iterator[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def pod(interpreter: str = sys.executable) -> PodRecord:
    container = {"name": "trainer", "command": [interpreter, "-m", "x"]}
    labels = {"regroup.dev/role": "worker", "regroup.dev/index": "1"}
    spec = {"containers": [container]}
    (found,) = read_pods([{"metadata": {"name": "gpt-w1-1", "labels": labels}, "spec": spec}])
    return found


def test_a_rank_is_killed_and_not_what_it_has_started() -> None:
    """A child of a rank, such as a data loader's, has its name too."""
    with started(FORKED) as rank:
        assert rank.stdout is not None
        printed = {int(rank.stdout.readline()), int(rank.stdout.readline())}
        (child,) = printed - {rank.pid}
        assert kill_rank(OwnMachine(), "team", pod(), 73211) == [rank.pid]
        assert rank.wait(60) == -9
        os.kill(child, 0)


def test_a_rank_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ClusterError, match="pod gpt-w1-1 has no process of rank 73213"):
        kill_rank(OwnMachine(), "team", pod(), 73213)
    with pytest.raises(ClusterError, match="cannot kill rank 1 in pod gpt-w1-1: Traceback"):
        kill_rank(Broken(), "team", pod(), 1)


class Broken:
    """An interpreter that fails."""

    def run_in_pod(
        self, namespace: str, pod: PodRecord, words: Sequence[str], seconds: float
    ) -> CommandOutput:
        return CommandOutput("", "Traceback\n  SyntaxError: x\n", 1)


@pytest.mark.parametrize(
    ("rank", "found"), [(2, "gpt-w1-1"), (3, "gpt-w1-1"), (1, None), (4, None), (7, None)]
)
def test_the_pod_of_a_rank_is_known_of_the_workers_that_the_status_lists(
    rank: int, found: str | None
) -> None:
    workers = [
        {"index": n, "pod": f"gpt-w{n}-1", "node": "n", "state": "Training", "rank": 2 * n}
        for n in range(2)
    ]
    job = job_record(running_status(workers=workers, worldSize=8, readyReplicas=4))
    shown = pod_of_rank(job, [pod()], rank)
    assert (shown and shown.name) == found
