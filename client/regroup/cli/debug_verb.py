"""`debug`: what each rank of a job does just now."""

from __future__ import annotations

import click

from regroup.cli.cluster_options import (
    ChosenCluster,
    Verb,
    job_argument,
    on_cluster,
    output_option,
    print_for_programs,
    show,
    width,
)


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob debug gpt",
        "kubectl trainingjob debug gpt -o wide",
        "kubectl trainingjob debug gpt -o json",
    ),
)
@job_argument()
@output_option(wide="all threads")
@on_cluster
def debug(cluster: ChosenCluster, name: str, output: str | None) -> None:
    """Show the Python stacks of all ranks, equal ones once.

    Ranks that do what few others do come first: the others may wait for them.
    Innermost calls are at the top. No rank stops or slows down for it. Ranks
    that show no stack, and pods that do not answer, are named with the reason.
    """
    from regroup.diagnosis.rank_stacks import fold, stack_lines
    from regroup.diagnosis.stack_request import ask_workers
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.pod_record import read_pods

    job = read_job(cluster.api.job(cluster.namespace, name))
    if job.uses_torchrun:
        raise click.ClickException(
            f"{name} has spec.launcher: torchrun, whose ranks show no stacks: run py-spy in its "
            "pods (`kubectl exec`), where that is allowed"
        )
    answers = ask_workers(
        cluster.api, cluster.namespace, read_pods(cluster.api.pods(cluster.namespace, name))
    )
    if not answers:
        raise click.ClickException(f"{name} has no worker pods: `kubectl trainingjob why {name}`")
    report = fold(name, answers, all_threads=output in ("wide", "json", "yaml"))
    if not print_for_programs(report, output, job.resource_name):
        show(stack_lines(report, width()))
