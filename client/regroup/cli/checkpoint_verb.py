"""`checkpoint now`: asks the ranks of a job for a checkpoint, once."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from regroup.cli.cluster_options import (
    ChosenCluster,
    DurationParameter,
    Verb,
    job_argument,
    note,
    on_cluster,
    output_option,
)

if TYPE_CHECKING:
    from regroup_operator.api.status import RequestStatus


class VerbGroup(Verb, click.Group):
    """A verb with verbs of its own."""


@click.group("checkpoint", cls=VerbGroup, examples=("kubectl trainingjob checkpoint now gpt",))
def checkpoint() -> None:
    """Save a checkpoint of a job now."""


@checkpoint.command(
    "now",
    cls=Verb,
    examples=(
        "kubectl trainingjob checkpoint now gpt",
        "kubectl trainingjob checkpoint now gpt --no-wait",
    ),
)
@job_argument()
@click.option("--wait/--no-wait", default=True, help="Wait until it is saved.  [default: wait]")
@click.option(
    "--timeout", type=DurationParameter(), default="10m", show_default=True, metavar="TIME",
    help="Longest time to wait.",
)  # fmt: skip
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
    from regroup_operator.api.status import CHECKPOINT_REQUEST, RequestStatus

    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    patch = {"metadata": {"annotations": {CHECKPOINT_NOW: now}}}
    cluster.api.patch_job(cluster.namespace, name, patch, dry_run=False)
    answer = (
        _answer(cluster, name, now, timeout)
        if wait
        else RequestStatus(name=CHECKPOINT_REQUEST, value=now, time=now, outcome="Pending")
    )
    _show(name, answer, output)
    sys.exit(0 if answer.outcome in ("Done", "Pending") else 1)


def _answer(cluster: ChosenCluster, name: str, value: str, timeout: float) -> RequestStatus:
    """What became of the request. Raises click.ClickException when that is not known in time."""
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.job_watch import Clock, follow
    from regroup_operator.api.names import CHECKPOINT_NOW
    from regroup_operator.api.status import CHECKPOINT_REQUEST

    clock = Clock(time.monotonic() + timeout)
    for document in follow(cluster.api, cluster.namespace, name, note, clock):
        answer = read_job(document).status.request(CHECKPOINT_REQUEST)
        if answer and answer.value == value and answer.outcome != "Pending":
            return answer
        if (document["metadata"].get("annotations") or {}).get(CHECKPOINT_NOW) != value:
            raise click.ClickException(f"somebody else has asked {name} for a checkpoint since")
    raise click.ClickException(
        f"{name} has saved none within {timeout:g} s, and will when it can: `kubectl trainingjob "
        f"why {name}`"
    )


def _show(name: str, answer: RequestStatus, output: str | None) -> None:
    from regroup.kubernetes.job_record import RESOURCE
    from regroup.kubernetes.output import structured

    if output in ("json", "yaml"):
        click.echo(structured(answer, output))
    elif output == "name":
        click.echo(f"{RESOURCE}/{name}")
    elif answer.outcome == "Pending":
        click.echo(f"{RESOURCE}/{name} checkpoint requested")
    else:
        is_error = answer.outcome != "Done"
        text = f"checkpoint {answer.outcome.lower()}: {answer.message}"
        click.echo(f"{RESOURCE}/{name} {text}", err=is_error)
