"""Verbs that change jobs: submit, scale, suspend, resume."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regroup.cli.cluster_options import (
    FOR_PROGRAMS,
    ChosenCluster,
    DurationParameter,
    Verb,
    job_argument,
    on_cluster,
    output_option,
    refuse_for_programs,
)
from regroup.cli.show_verbs import print_objects, watch_job

if TYPE_CHECKING:
    from regroup_operator.api.resource import Object

_DRY_RUN = click.option(
    "--dry-run", is_flag=True, help="Let the API server check it, and change nothing."
)
_STDIN = Path("-")


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob submit -f job.yaml --wait",
        "kubectl trainingjob submit gpt --model gpt:1m --steps 500 \\",
        "  --replicas 3 --min-replicas 2 --claim shared",
        "kubectl trainingjob submit mine --image registry/mine:1 --gpus 8 \\",
        "  -- python train.py --lr 1e-4",
        "kubectl trainingjob submit -f job.yaml --dry-run -o yaml",
    ),
)
@click.argument("name", required=False, metavar="[NAME]")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@click.option(
    "-f",
    "--filename",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path, allow_dash=True),
    help="File with the job, or - for standard input.",
)
@click.option("--image", metavar="IMAGE", help="Image of the workers.")
@click.option("--replicas", type=click.IntRange(min=1), help="Number of workers.")
@click.option("--min-replicas", type=click.IntRange(min=1), help="Train with as few as these.")
@click.option("--max-replicas", type=click.IntRange(min=1), help="Grow to as many as these.")
@click.option("--gpus", type=click.IntRange(min=1), help="GPUs of each worker.")
@click.option("--claim", metavar="NAME", help="PersistentVolumeClaim for the checkpoints.")
@click.option("--model", metavar="NAME:PRESET", help="Model of the built-in trainer, as gpt:1m.")
@click.option("--strategy", metavar="NAME", help="With --model: ddp, zero, fsdp or hsdp.")
@click.option("--steps", type=click.IntRange(min=1), help="With --model: steps to train.")
@click.option("--launcher", type=click.Choice(["regroup", "torchrun"]), help="What starts ranks.")
@click.option("--wait", is_flag=True, help="Show changes until the job ends; exit codes of status.")
@click.option("--timeout", type=DurationParameter(), metavar="TIME", help="Longest time of --wait.")
@_DRY_RUN
@output_option()
@on_cluster
def submit(
    cluster: ChosenCluster,
    file: Path | None,
    wait: bool,
    timeout: float | None,
    dry_run: bool,
    output: str | None,
    **flags: Any,
) -> None:
    """Create a job, from a file or from flags.

    It is checked as by `validate` first. Beside a job, the file may hold the
    ConfigMap with its code, as `regroup convert` writes it: the job owns it.
    """
    if wait and not dry_run:
        refuse_for_programs("--wait", output)
    jobs, code = _of_file(file, flags) if file is not None else ([_of_flags(flags)], None)
    if wait and len(jobs) > 1:
        raise click.UsageError(f"--wait: {file} holds {len(jobs)} jobs; it waits for one")
    created = [_create(cluster, job, code, dry_run) for job in jobs]
    _done(created, "created", output, dry_run=dry_run)
    if wait and not dry_run:
        sys.exit(watch_job(cluster, str(created[0]["metadata"]["name"]), timeout))


def _create(cluster: ChosenCluster, job: Object, code: Object | None, dry_run: bool) -> Object:
    """Create a job, which owns its code. Raises ClusterError."""
    from regroup.kubernetes.submit_code import submit, try_out, with_digest

    namespace = _namespace(cluster, job)
    if code is None:
        return cluster.api.create_job(namespace, job, dry_run=dry_run)
    send = try_out if dry_run else submit
    return send(cluster.api, namespace, with_digest(job, code), code)


def _of_file(file: Path, flags: dict[str, Any]) -> tuple[list[Object], Object | None]:
    """The jobs of a file, and the ConfigMap of the only one. Raises click.ClickException with all
    problems.
    """
    from regroup.cli.validate_command import checked_files

    given = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value]
    if given:
        raise click.UsageError(f"give -f or {', '.join(given)}, not both: change the file instead")
    source = Path("/dev/stdin") if file == _STDIN else file
    (found,) = checked_files([source])
    return [job.value for job in found.jobs], found.code.value if found.code else None


def _of_flags(flags: dict[str, Any]) -> Object:
    """The job of the flags. Raises click.ClickException with all problems."""
    from regroup.cli.manifest import Document
    from regroup.cli.validation import validate
    from regroup.kubernetes.submission import JobFlags, job_of_flags

    if not flags["name"]:
        raise click.UsageError("give -f FILE, or a NAME and flags that say what to train")
    try:
        job = job_of_flags(JobFlags(**flags))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if problems := validate(Document(Path("flags"), job)):
        reasons = "\n".join(f"{problem.field}: {problem.message}" for problem in problems)
        raise click.ClickException(f"the flags describe no valid job: {reasons}")
    return job


def _namespace(cluster: ChosenCluster, job: Object) -> str:
    """The job's own namespace. Raises click.ClickException where -n says another."""
    own = job["metadata"].get("namespace")
    if own and cluster.chosen_namespace and own != cluster.chosen_namespace:
        raise click.ClickException(
            f"metadata.namespace is {own}, and -n {cluster.chosen_namespace}: give one of them"
        )
    return str(own or cluster.namespace)


@click.command(cls=Verb, examples=("kubectl trainingjob scale gpt --replicas 4",))
@job_argument()
@click.option(
    "--replicas", type=click.IntRange(min=1), required=True, help="Number of workers to have."
)
@_DRY_RUN
@output_option()
@on_cluster
def scale(
    cluster: ChosenCluster, name: str, replicas: int, dry_run: bool, output: str | None
) -> None:
    """Change the number of workers, without losing a step.

    It stays within spec.elasticPolicy.
    """
    cluster.api.scale_job(cluster.namespace, name, replicas, dry_run=dry_run)
    job = cluster.api.job(cluster.namespace, name)
    _done([job], f"scaled to {replicas} workers", output, dry_run=dry_run)


@click.command(cls=Verb, examples=("kubectl trainingjob suspend gpt",))
@job_argument()
@_DRY_RUN
@output_option()
@on_cluster
def suspend(cluster: ChosenCluster, name: str, dry_run: bool, output: str | None) -> None:
    """Save a job's state and give its pods back.

    `resume` goes on from there.
    """
    _set_suspend(cluster, name, True, dry_run, output)


@click.command(cls=Verb, examples=("kubectl trainingjob resume gpt",))
@job_argument()
@_DRY_RUN
@output_option()
@on_cluster
def resume(cluster: ChosenCluster, name: str, dry_run: bool, output: str | None) -> None:
    """Let a suspended job train on."""
    _set_suspend(cluster, name, False, dry_run, output)


def _set_suspend(
    cluster: ChosenCluster, name: str, value: bool, dry_run: bool, output: str | None
) -> None:
    patch = {"spec": {"suspend": value}}
    job = cluster.api.patch_job(cluster.namespace, name, patch, dry_run=dry_run)
    _done([job], "suspend requested" if value else "resume requested", output, dry_run=dry_run)


def _done(jobs: list[Object], what: str, output: str | None, *, dry_run: bool) -> None:
    """Say what was done, or print the objects."""
    from regroup.kubernetes.job_record import read_job

    if output in FOR_PROGRAMS:
        print_objects(jobs, output, one=len(jobs) == 1)
        return
    mark = " (server dry run)" if dry_run else ""
    for job in jobs:
        click.echo(f"{read_job(job).resource_name} {what}{mark}")
