"""`simulate-failure`: kills a rank or pods of a job, after a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from regroup.cli.cluster_options import (
    FOR_PROGRAMS,
    ChosenCluster,
    Verb,
    job_argument,
    note,
    on_cluster,
    output_option,
    print_for_programs,
)

if TYPE_CHECKING:
    from regroup.kubernetes.job_record import JobRecord
    from regroup.kubernetes.pod_record import PodRecord

Say = Callable[[str], object]
"""Prints a line of what was done: no result where -o asks for one value."""


@dataclass(frozen=True)
class Killed:
    """What was killed."""

    job: str
    namespace: str
    pods: tuple[str, ...]
    """The pods that were deleted, or the one of the rank, which stays."""
    rank: int | None = None
    processes: tuple[int, ...] = ()
    """Those of the rank, as its pod numbers them."""


@click.command(
    "simulate-failure",
    cls=Verb,
    examples=(
        "kubectl trainingjob simulate-failure gpt --rank 3",
        "kubectl trainingjob simulate-failure gpt --pod gpt-w1-1",
        "kubectl trainingjob simulate-failure gpt --node n2 --yes",
    ),
)
@job_argument()
@click.option(
    "--rank",
    type=click.IntRange(min=0),
    metavar="N",
    help="The process of this rank, of the 64 workers that the status lists; not under torchrun.",
)
@click.option(
    "--pod", metavar="NAME", help="This pod of the job: a worker, its coordinator or store."
)
@click.option("--node", metavar="NAME", help="All pods of the job on this node.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option()
@on_cluster
def simulate_failure(
    cluster: ChosenCluster,
    name: str,
    rank: int | None,
    yes: bool,
    output: str | None,
    **place: str | None,
) -> None:
    """Kill a rank or pods of a job, to see how it recovers.

    It says which, and asks. Ranks get SIGKILL. Pods are deleted by force, as if
    they were lost: no rank can save first. Nothing else on a node is touched.
    Then watch the job with `status -w` and `timeline`.
    """
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.pod_record import read_pods

    if sum(given is not None for given in (rank, *place.values())) != 1:
        raise click.UsageError("give one of --rank, --pod and --node")
    job = read_job(cluster.api.job(cluster.namespace, name))
    pods = read_pods(cluster.api.pods(cluster.namespace, name))
    say = note if output in FOR_PROGRAMS else click.echo
    if rank is not None:
        killed = _fail_rank(cluster, job, _pod_of(job, pods, rank), rank, yes, say)
    else:
        killed = _fail_pods(cluster, job, _choose(job, pods, **place), yes, say)
    print_for_programs(killed, output, *(f"pod/{one}" for one in killed.pods))


def _choose(
    job: JobRecord, pods: Sequence[PodRecord], pod: str | None, node: str | None
) -> list[PodRecord]:
    """The pod of this name, or all on this node. Raises click.ClickException when there is none."""
    chosen = [one for one in pods if one.name == pod or (node is not None and one.node == node)]
    if not chosen:
        what = f"pod {pod}" if node is None else f"pod on node {node}"
        raise click.ClickException(
            f"{job.name} has no {what}: `kubectl trainingjob describe {job.name}` lists its pods"
        )
    return chosen


def _fail_pods(
    cluster: ChosenCluster, job: JobRecord, chosen: Sequence[PodRecord], yes: bool, say: Say
) -> Killed:
    for line in _announcement(job, chosen):
        note(line)
    if not yes:
        click.confirm("Kill them?", abort=True, err=True)
    for one in chosen:
        cluster.api.delete_pod(cluster.namespace, one.name)
        say(f"pod {one.name} deleted")
    return Killed(job.name, job.namespace, tuple(one.name for one in chosen))


def _pod_of(job: JobRecord, pods: Sequence[PodRecord], rank: int) -> PodRecord:
    """The pod in which a rank runs. Raises click.ClickException when that is not known."""
    from regroup.diagnosis.rank_kill import pod_of_rank

    if job.uses_torchrun:
        raise click.ClickException(
            f"{job.name} has spec.launcher: torchrun, and only torchrun knows which pod runs rank "
            f"{rank}: give --pod"
        )
    pod = pod_of_rank(job, pods, rank)
    if pod is None:
        raise click.ClickException(
            f"no pod of {job.name} is known to run rank {rank} (of {job.status.world_size}; the "
            f"status lists {len(job.status.workers)} workers, 64 at most): give --pod"
        )
    return pod


def _fail_rank(
    cluster: ChosenCluster, job: JobRecord, pod: PodRecord, rank: int, yes: bool, say: Say
) -> Killed:
    from regroup.diagnosis.rank_kill import kill_rank

    note(
        f"This kills the process of rank {rank} in pod {pod.name} on {pod.node or 'no node'} by "
        "SIGKILL.\nIt counts as a failure of the program (spec.restartPolicy.maxRestarts)."
    )
    if not yes:
        click.confirm("Kill it?", abort=True, err=True)
    processes = kill_rank(cluster.api, cluster.namespace, pod, rank)
    say(f"rank {rank} killed: process {', '.join(map(str, processes))} of pod {pod.name}")
    return Killed(job.name, job.namespace, (pod.name,), rank, tuple(processes))


def _announcement(job: JobRecord, chosen: Sequence[PodRecord]) -> list[str]:
    """What will be killed, and what that leaves."""
    workers = [pod for pod in chosen if pod.index is not None]
    left, (least, _) = job.status.ready_replicas - len(workers), job.bounds
    after = (
        f"{max(left, 0)} of {job.status.ready_replicas} training workers are left, and the job "
        f"needs {least}: it {'trains on' if left >= least else 'waits for new pods'}."
    )
    killed = [f"  {pod.name} ({pod.role} on {pod.node or 'no node'})" for pod in chosen]
    return [
        f"This kills pods of {job.name} in namespace {job.namespace}, by force:",
        *killed,
        after if workers else _without_leader(job),
    ]


def _without_leader(job: JobRecord) -> str:
    if job.uses_torchrun:
        return "All ranks start again, in new pods: their agents lose the store at which they meet."
    return "Workers train on without their coordinator."
