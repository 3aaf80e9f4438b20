"""Kills the process of one rank, by a program that runs in its pod under the Python of the pod."""

from __future__ import annotations

from collections.abc import Sequence

from regroup.kubernetes.cluster_errors import ClusterError
from regroup.kubernetes.job_record import JobRecord
from regroup.kubernetes.pod_channels import CommandRunner
from regroup.kubernetes.pod_record import PodRecord
from regroup_operator.api.names import WORKER

SECONDS = 30.0
PROGRAM = """\
import os, signal, sys

def text(pid, file):
    try:
        with open("/proc/%d/%s" % (pid, file), "rb") as stream:
            return stream.read()
    except OSError:
        return b""

def leads(pid):
    try:
        return os.getpgid(pid) == pid
    except OSError:
        return False

rank, found = sys.argv[1].encode(), []
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    if text(pid, "comm").strip() == b"rank-" + rank and leads(pid):
        found.append(pid)
for pid in set(found) - {1, os.getpid()}:
    os.kill(pid, signal.SIGKILL)
    print(pid)
"""
"""Kills the processes of rank `argv[1]` and prints their ids. A rank of our launcher has its name
and leads a process group; its children only have the name.
"""


def pod_of_rank(job: JobRecord, pods: Sequence[PodRecord], rank: int) -> PodRecord | None:
    """The pod in which a rank runs, as far as the status shows it: it has the first 64 workers, and
    under launcher torchrun no ranks.
    """
    names = {
        one.pod
        for one in job.status.workers
        if one.rank is not None and one.rank <= rank < one.rank + job.ranks_per_worker
    }
    return next((pod for pod in pods if pod.name in names and pod.role == WORKER), None)


def kill_rank(api: CommandRunner, namespace: str, pod: PodRecord, rank: int) -> list[int]:
    """Kill a rank; returns the processes. Raises ClusterError, also where the pod has none."""
    interpreter = pod.command[0] if pod.command else "python3"
    output = api.run_in_pod(namespace, pod, [interpreter, "-c", PROGRAM, str(rank)], SECONDS)
    if output.exit_code:
        reason = " ".join(output.stderr.split()[-20:])
        raise ClusterError(f"cannot kill rank {rank} in pod {pod.name}: {reason}")
    if not output.stdout.split():
        raise ClusterError(
            f"pod {pod.name} has no process of rank {rank}: the ranks may just have changed; try "
            "again"
        )
    return [int(word) for word in output.stdout.split()]
