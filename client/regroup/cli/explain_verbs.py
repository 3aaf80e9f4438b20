"""Verbs that explain: why, timeline, logs."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

from regroup.cli.cluster_options import (
    ChosenCluster,
    DurationParameter,
    Verb,
    job_argument,
    note,
    on_cluster,
    output_option,
    print_for_programs,
    refuse_for_programs,
    show,
    width,
)

if TYPE_CHECKING:
    from regroup.kubernetes.pod_logs import Choice


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob why gpt",
        "kubectl trainingjob why gpt -o json",
    ),
)
@job_argument()
@click.option(
    "--operator-namespace",
    default="regroup-system",
    show_default=True,
    metavar="NAME",
    help="Where the operator is, to see whether it is at work.",
)
@output_option()
@on_cluster
def why(cluster: ChosenCluster, name: str, operator_namespace: str, output: str | None) -> None:
    """Say why a job does not train.

    In one sentence, with the evidence and what to do. The reason is the
    operator's own. Evidence is from the status, events, pods, nodes and quotas,
    as far as you may read them. Only while the operator is away does this
    command judge itself, and says so.
    """
    from regroup.kubernetes.scene import gather
    from regroup.kubernetes.why_report import explain, why_lines

    scene = gather(cluster.api, cluster.namespace, name, operator_namespace)
    report = explain(scene, cluster.api.now())
    if not print_for_programs(report, output, scene.job.resource_name):
        show(why_lines(report, width()))


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob timeline gpt",
        "kubectl trainingjob timeline gpt -o yaml",
    ),
)
@job_argument()
@output_option(wide="pod and node of each recovery")
@on_cluster
def timeline(cluster: ChosenCluster, name: str, output: str | None) -> None:
    """Draw the generations and recoveries of a job.

    The status remembers the last ten.
    """
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.timeline import timeline as drawn
    from regroup.kubernetes.timeline import timeline_lines

    job = read_job(cluster.api.job(cluster.namespace, name))
    found = drawn(job, cluster.api.now())
    if not print_for_programs(found, output, job.resource_name):
        show(timeline_lines(job, found, width(), wide=output == "wide"))


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob logs gpt --tail 20",
        "kubectl trainingjob logs gpt --rank 0 -f",
        "kubectl trainingjob logs gpt --failed",
    ),
)
@job_argument()
@click.option("--rank", type=click.IntRange(min=0), help="Only the lines of this rank.")
@click.option("--failed", is_flag=True, help="Only pods in which a container or a rank failed.")
@click.option("-f", "--follow", is_flag=True, help="Go on, with the pods that replace others too.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Last lines of each pod.")
@click.option(
    "--since", type=DurationParameter(), metavar="TIME", help="Lines of that time only, such as 5m."
)
@output_option(
    wide="the pod to each line; json prints an object a line, name the pods", without="yaml"
)
@on_cluster
def logs(
    cluster: ChosenCluster,
    name: str,
    rank: int | None,
    failed: bool,
    follow: bool,
    output: str | None,
    **part: Any,
) -> None:
    """Print what the workers of a job write.

    Lines begin with the rank, or with the pod where no rank wrote them. A pod
    that is gone takes its log with it; see `kubectl trainingjob describe`.
    """
    from regroup.kubernetes.cluster_api import LogQuery
    from regroup.kubernetes.job_record import JobRecord, read_job
    from regroup.kubernetes.pod_logs import Choice, Follower, read_logs
    from regroup.kubernetes.pod_record import PodRecord, read_pods
    from regroup.local.display import without_escapes

    if follow and output == "name":
        refuse_for_programs("-f", output)
    api, namespace = cluster.api, cluster.namespace

    def look() -> tuple[JobRecord, list[PodRecord]]:
        return read_job(api.job(namespace, name)), read_pods(api.pods(namespace, name))

    job, pods = look()
    choice = _in_form(Choice(rank, failed), output)
    since = part["since"]
    seconds = None if since is None else max(1, round(since))
    query = LogQuery(follow, tail_lines=part["tail"], since_seconds=seconds)
    chosen = choice.pods(job, pods)
    if not chosen and (not follow or job.has_ended):
        note(_no_pods(name, failed))
    if output == "name":
        show(f"pod/{pod.name}" for pod in chosen)
        return
    lines = (
        Follower(api, look, choice, query, note).lines()
        if follow
        else read_logs(api, namespace, chosen, choice, query, note)
    )
    show(without_escapes(line) for line in lines)


def _in_form(choice: Choice, output: str | None) -> Choice:
    """The same lines, in the form that -o asks for."""
    from regroup.kubernetes.output import structured_line

    if output == "json":
        return replace(choice, form=structured_line)
    return replace(choice, form=attrgetter("wide")) if output == "wide" else choice


def _no_pods(name: str, failed: bool) -> str:
    if failed:
        return f"no container and no rank of {name} failed in the pods that are there"
    return f"{name} has no worker pods: `kubectl trainingjob why {name}`"
