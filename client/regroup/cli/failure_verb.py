"""`simulate-failure`: kills a rank or pods of a job, after a question."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from regroup.cli.cluster_options import ChosenCluster, Verb, job_argument, on_cluster, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from regroup.kubernetes.job_record import JobRecord
    from regroup.kubernetes.pod_record import PodRecord


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
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="The process of this rank.")
@click.option("--pod", metavar="NAME", help="This pod of the job: a worker, or its coordinator.")
@click.option("--node", metavar="NAME", help="All pods of the job on this node.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@on_cluster
def simulate_failure(
    cluster: ChosenCluster,
    name: str,
    rank: int | None,
    pod: str | None,
    node: str | None,
    yes: bool,
) -> None:
    """Kill a rank or pods of a job, to see how it recovers.

    It says which, and asks. Ranks get SIGKILL. Pods are deleted by force, as if
    they were lost: no rank can save first. Nothing else on a node is touched.
    Then watch the job with `status -w` and `timeline`.
    """
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.pod_record import read_pods

    if sum(given is not None for given in (rank, pod, node)) != 1:
        raise click.UsageError("give one of --rank, --pod and --node")
    job = read_job(cluster.api.job(cluster.namespace, name))
    pods = read_pods(cluster.api.pods(cluster.namespace, name))
    if rank is not None:
        _fail_rank(cluster, job, pods, rank, yes)
        return
    chosen = [one for one in pods if one.name == pod or (node is not None and one.node == node)]
    if not chosen:
        what = f"pod {pod}" if node is None else f"pod on node {node}"
        raise click.ClickException(
            f"{name} has no {what}: `kubectl trainingjob describe {name}` lists its pods"
        )
    show(_announcement(job, chosen))
    if not yes:
        click.confirm("Kill them?", abort=True)
    for one in chosen:
        cluster.api.delete_pod(cluster.namespace, one.name)
        click.echo(f"pod {one.name} deleted")


def _fail_rank(
    cluster: ChosenCluster, job: JobRecord, pods: Sequence[PodRecord], rank: int, yes: bool
) -> None:
    from regroup.diagnosis.rank_kill import kill_rank, pod_of_rank

    pod = pod_of_rank(job, pods, rank)
    if pod is None:
        raise click.ClickException(
            f"no pod of {job.name} is known to run rank {rank} (of {job.status.world_size}): give "
            "--pod"
        )
    click.echo(
        f"This kills the process of rank {rank} in pod {pod.name} on {pod.node or 'no node'} by "
        "SIGKILL.\nIt counts as a failure of the program (spec.restartPolicy.maxRestarts)."
    )
    if not yes:
        click.confirm("Kill it?", abort=True)
    killed = kill_rank(cluster.api, cluster.namespace, pod, rank)
    click.echo(f"rank {rank} killed: process {', '.join(map(str, killed))} of pod {pod.name}")


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
        *([after] if workers else ["Workers train on without their coordinator."]),
    ]
