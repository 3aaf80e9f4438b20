"""Verbs that ask for something once, by an annotation: checkpoint now, restart."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

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
    resource_name,
)

if TYPE_CHECKING:
    from regroup_operator.api.status import RequestStatus


_NEWEST = "newest"
_WAIT = click.option(
    "--wait/--no-wait", default=True, help="Wait until it is done.  [default: wait]"
)
_TIMEOUT = click.option(
    "--timeout", type=DurationParameter(), default="10m", show_default=True, metavar="TIME",
    help="Longest time to wait.",
)  # fmt: skip


class VerbGroup(Verb, click.Group):
    """A verb with verbs of its own."""


@click.group(
    "checkpoint",
    cls=VerbGroup,
    examples=(
        "kubectl trainingjob checkpoint now gpt",
        "kubectl trainingjob checkpoint list gpt",
        "kubectl trainingjob checkpoint export gpt --out gpt.safetensors",
    ),
)
def checkpoint() -> None:
    """Save a checkpoint; list, verify, export them."""


@checkpoint.command(
    "now",
    cls=Verb,
    examples=(
        "kubectl trainingjob checkpoint now gpt",
        "kubectl trainingjob checkpoint now gpt --no-wait",
    ),
)
@job_argument()
@_WAIT
@_TIMEOUT
@output_option()
@on_cluster
def checkpoint_now(
    cluster: ChosenCluster, name: str, wait: bool, timeout: float, output: str | None
) -> None:
    """Save a checkpoint after the next step, and train on.

    It sets the annotation regroup.dev/checkpoint-now; status.requests says what
    became of it. The end of the wait is not the end of the request.
    """
    from regroup_operator.api.names import CHECKPOINT_NOW
    from regroup_operator.api.status import CHECKPOINT_REQUEST

    asked = Asked(name, CHECKPOINT_REQUEST, CHECKPOINT_NOW, _now())
    _request(cluster, asked, timeout if wait else None, output)


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob restart gpt --from-checkpoint",
        "kubectl trainingjob restart gpt --from-checkpoint 4000 --yes",
    ),
)
@job_argument()
@click.option(
    "--from-checkpoint", "step", is_flag=False, flag_value=_NEWEST, required=True,
    metavar="[STEP]", help="The newest checkpoint, or the one of this step.",
)  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_WAIT
@_TIMEOUT
@output_option()
@on_cluster
def restart(
    cluster: ChosenCluster,
    name: str,
    step: str,
    yes: bool,
    output: str | None,
    **patience: Any,
) -> None:
    """Have all ranks start again from a checkpoint.

    What was trained since then is given up, and done again. Pods stay. It sets
    the annotation regroup.dev/restart-from-checkpoint; status.requests says what
    became of it.
    """
    from regroup_operator.api.names import RESTART
    from regroup_operator.api.status import RESTART_REQUEST

    if step != _NEWEST and not step.isdecimal():
        raise click.UsageError(f"--from-checkpoint {step}: give a step, or nothing behind it")
    which = "the newest checkpoint" if step == _NEWEST else f"the checkpoint of step {step}"
    if not yes:
        note(f"This gives up what {name} has trained since {which}.")
        click.confirm("Restart it?", abort=True, err=True)
    value = _now() + ("" if step == _NEWEST else f"@{step}")
    asked = Asked(name, RESTART_REQUEST, RESTART, value)
    _request(cluster, asked, patience["timeout"] if patience["wait"] else None, output)


@dataclass(frozen=True)
class Asked:
    """A request, and where it stands."""

    job: str
    name: str
    """In the status."""
    annotation: str
    value: str


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _request(
    cluster: ChosenCluster, asked: Asked, timeout: float | None, output: str | None
) -> NoReturn:
    """Ask, wait for so long where a time is given, show the outcome, and exit."""
    from regroup_operator.api.status import RequestStatus

    patch = {"metadata": {"annotations": {asked.annotation: asked.value}}}
    cluster.api.patch_job(cluster.namespace, asked.job, patch, dry_run=False)
    answer = (
        _answer(cluster, asked, timeout)
        if timeout is not None
        else RequestStatus(name=asked.name, value=asked.value, time=_now(), outcome="Pending")
    )
    _show(asked, answer, output)
    sys.exit(0 if answer.outcome in ("Done", "Pending") else 1)


def _answer(cluster: ChosenCluster, asked: Asked, timeout: float) -> RequestStatus:
    """What became of the request. Raises click.ClickException when that is not known in time."""
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.job_watch import Clock, follow

    clock = Clock(time.monotonic() + timeout)
    for document in follow(cluster.api, cluster.namespace, asked.job, note, clock):
        answer = read_job(document).status.request(asked.name)
        if answer and answer.value == asked.value and answer.outcome != "Pending":
            return answer
        if (document["metadata"].get("annotations") or {}).get(asked.annotation) != asked.value:
            raise click.ClickException(f"somebody else has asked the same of {asked.job} since")
    raise click.ClickException(
        f"{asked.job} has not done it within {timeout:g} s, and will when it can: `kubectl "
        f"trainingjob why {asked.job}`"
    )


def _show(asked: Asked, answer: RequestStatus, output: str | None) -> None:
    what = "checkpoint" if asked.name == "CheckpointNow" else "restart"
    job = resource_name(asked.job)
    if print_for_programs(answer, output, job):
        return
    if answer.outcome == "Pending":
        click.echo(f"{job} {what} requested")
    else:
        text = f"{what} {answer.outcome.lower()}: {answer.message}"
        click.echo(f"{job} {text}", err=answer.outcome != "Done")
