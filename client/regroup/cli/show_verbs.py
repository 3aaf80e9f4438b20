"""Verbs that show jobs: get, status, describe, top."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from typing import TYPE_CHECKING

import click

from regroup.cli.cluster_options import (
    FOR_PROGRAMS,
    ChosenCluster,
    DurationParameter,
    Verb,
    job_argument,
    note,
    on_cluster,
    output_option,
    print_for_programs,
    print_structured,
    refuse_for_programs,
    resource_name,
    show,
    width,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from regroup.kubernetes.job_record import JobRecord
    from regroup_operator.api.resource import Object


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob get",
        "kubectl trainingjob get gpt -o wide",
        "kubectl trainingjob get -A -l team=vision",
    ),
)
@job_argument(many=True)
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Jobs with these labels.")
@output_option(wide="ranks, generation, time left and message")
@on_cluster
def get(
    cluster: ChosenCluster,
    names: tuple[str, ...],
    all_namespaces: bool,
    selector: str,
    output: str | None,
) -> None:
    """List jobs, one line each.

    WORKERS are training / wanted, CKPT is the step of the newest checkpoint,
    GOODPUT the share of time spent on steps that count.
    """
    from regroup.kubernetes.job_list import job_list
    from regroup.kubernetes.job_record import read_job

    if names and (all_namespaces or selector):
        raise click.UsageError("give names, or -A and -l, not both")
    where = None if all_namespaces else cluster.namespace
    found = (
        [cluster.api.job(cluster.namespace, name) for name in names]
        if names
        else cluster.api.jobs(where, selector)
    )
    if output in FOR_PROGRAMS:
        print_objects(found, output, one=len(names) == 1)
    elif not found:
        note(f"No trainingjobs found{'' if where is None else f' in namespace {where}'}.")
    else:
        jobs = [read_job(job) for job in found]
        wide = output == "wide"
        show(job_list(jobs, cluster.api.now(), with_namespace=all_namespaces, wide=wide))


def print_objects(found: Sequence[Object], output: str, *, one: bool) -> None:
    """Objects of the API as kubectl prints them."""
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.output import as_list, without_managed_fields

    names = [read_job(job).resource_name for job in found]
    plain = [without_managed_fields(job) for job in found]
    print_for_programs(plain[0] if one else as_list(plain), output, *names)


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob status gpt",
        "kubectl trainingjob status gpt -w --timeout 2h",
        "kubectl trainingjob status gpt -o json",
    ),
)
@job_argument()
@click.option("-w", "--watch", is_flag=True, help="A line for each change, until the job ends.")
@click.option(
    "--timeout", type=DurationParameter(), metavar="TIME", help="Longest time of -w, such as 2h."
)
@output_option(wide="conditions, and workers with the steps that they have just made")
@on_cluster
def status(
    cluster: ChosenCluster, name: str, watch: bool, timeout: float | None, output: str | None
) -> None:
    """Show how a job is; the exit code says it too.

    Exit code: 0 Running, Resizing or Succeeded, 1 an error, 2 a wrong command
    line, 3 Failed, 4 Suspended, 5 Pending, Starting or Recovering, 6 no operator
    has looked at it yet.

    With -w it is the code of the end, or of the state when --timeout is over.
    """
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.job_summary import exit_code, status_lines, status_report

    if watch:
        refuse_for_programs("-w", output)
        sys.exit(watch_job(cluster, name, timeout))
    job = read_job(cluster.api.job(cluster.namespace, name))
    if not print_for_programs(status_report(job), output, job.resource_name):
        show(status_lines(job, cluster.api.now(), width(), wide=output == "wide"))
        if output == "wide":
            show(_workers_now(cluster, job))
    sys.exit(exit_code(job))


def _workers_now(cluster: ChosenCluster, job: JobRecord) -> list[str]:
    from regroup.diagnosis.live_progress import live_steps
    from regroup.kubernetes.job_description import worker_table

    steps = live_steps(cluster.api, job)
    if steps.refusal:
        note(f"Steps of workers are left out: {steps.refusal}")
    lines = worker_table(job, steps.of_workers)
    return ["", "Workers:", *lines] if lines else []


def watch_job(cluster: ChosenCluster, name: str, timeout: float | None) -> int:
    """Print a line for each change until the job ends. Returns the exit code."""
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.job_summary import UNKNOWN, exit_code, status_line
    from regroup.kubernetes.job_watch import Clock, follow

    clock = Clock(time.monotonic() + timeout if timeout else math.inf)
    former, code = "", UNKNOWN
    for document in follow(cluster.api, cluster.namespace, name, note, clock):
        job = read_job(document)
        line, code = status_line(job, cluster.api.now()), exit_code(job)
        if line[10:] != former:  # behind the time of day
            click.echo(line)
            former = line[10:]
        if job.has_ended:
            return code
    note(f"stopped watching after {timeout:g} s; the job goes on")
    return code


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob describe gpt",
        "kubectl trainingjob describe gpt -o json",
    ),
)
@job_argument()
@output_option(wide="all events, not the newest 20 alone")
@on_cluster
def describe(cluster: ChosenCluster, name: str, output: str | None) -> None:
    """Show all that is known of a job.

    Progress, where the time went (goodput), conditions, recoveries,
    checkpoint, workers and events.
    """
    from regroup.kubernetes.job_description import describe as described
    from regroup.kubernetes.job_description import description_lines
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.scene import events_of_job

    job = read_job(cluster.api.job(cluster.namespace, name))
    if output == "name":
        click.echo(job.resource_name)
        return
    events = events_of_job(cluster.api, job)
    if output in ("json", "yaml"):
        print_structured(described(job, events), output)
    else:
        wide = output == "wide"
        show(description_lines(job, events, cluster.api.now(), width(), wide=wide))


@click.command(
    cls=Verb,
    examples=("kubectl trainingjob top", "kubectl trainingjob top -A --interval 10s"),
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of all namespaces.")
@click.option(
    "--interval",
    type=DurationParameter(),
    default="5s",
    show_default=True,
    metavar="TIME",
    help="Pause between two looks.",
)
@output_option(wide="samples/s, generation and time left")
@on_cluster
def top(cluster: ChosenCluster, all_namespaces: bool, interval: float, output: str | None) -> None:
    """Show live how fast jobs train.

    By the metrics of the coordinator and of the worker with rank 0, which it
    reaches as `kubectl port-forward` does. Else by the status: SEEN is its age.
    PHASE and FAILED, the restarts, are those of the status, which is written as
    soon as they change. STEPS/S is the mean of the last 30 s, or what a script
    reports. On a terminal it goes on until Ctrl-C; elsewhere, and with -o json,
    yaml or name, it looks once.
    """
    from regroup.diagnosis.live_progress import kept_marks, with_live_progress
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.top_table import Marks, TopRow, recent_marks, top_lines, top_rows

    where = None if all_namespaces else cluster.namespace
    marks: Marks | None = None

    def look() -> list[TopRow]:
        nonlocal marks
        found = [read_job(job) for job in cluster.api.jobs(where)]
        if marks is None:
            marks = kept_marks(cluster.api, found)
        jobs, now_live = with_live_progress(cluster.api, found, cluster.api.now())
        marks = recent_marks(jobs, marks)
        return top_rows(jobs, marks, now_live)

    def lines() -> list[str]:
        wide = output == "wide"
        return top_lines(look(), cluster.api.now(), with_namespace=all_namespaces, wide=wide)

    if output in FOR_PROGRAMS:
        rows = look()
        print_for_programs({"jobs": rows}, output, *(resource_name(row.name) for row in rows))
    elif sys.stdout.isatty():
        live(lines, max(interval, 1.0))
    else:
        show(lines())


def live(look: Callable[[], list[str]], seconds: float) -> None:
    """Draw what `look` returns again and again, until Ctrl-C. An outage leaves the last picture."""
    from rich.live import Live
    from rich.text import Text

    from regroup.kubernetes.cluster_errors import ClusterError

    lines = look()
    with contextlib.suppress(KeyboardInterrupt), Live(auto_refresh=False) as display:
        while True:
            display.update(Text("\n".join(lines), no_wrap=True), refresh=True)
            time.sleep(seconds)
            try:
                lines = look()
            except ClusterError as error:
                if not error.may_pass:
                    raise
                display.console.print(Text(str(error)))
