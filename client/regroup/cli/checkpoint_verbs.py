"""Verbs that read what a job has saved: checkpoint list, verify, export."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from regroup.cli.cluster_options import (
    FOR_PROGRAMS,
    ChosenCluster,
    Function,
    Verb,
    job_argument,
    note,
    on_cluster,
    output_option,
    print_for_programs,
    resource_name,
    show,
)

if TYPE_CHECKING:
    from regroup.kubernetes.pod_channels import CommandOutput, CommandStream
    from regroup.local.checkpoint_list import SavedCheckpoint

LIST_SECONDS = 60.0
"""What a pod may take to list."""


def _step(default: str) -> Callable[[Function], Function]:
    return click.option(
        "--step",
        type=click.IntRange(min=0),
        metavar="N",
        help=f"The checkpoint of this step; by default {default}.",
    )


_YES = click.option("-y", "--yes", is_flag=True, help="Do not ask before a pod is made.")


@click.command(
    "list",
    cls=Verb,
    examples=(
        "kubectl trainingjob checkpoint list gpt",
        "kubectl trainingjob checkpoint list gpt --yes -o json",
    ),
)
@job_argument()
@click.option("-y", "--yes", is_flag=True, help="Make a pod that reads, where no worker runs.")
@output_option(wide="the folders")
@on_cluster
def list_checkpoints(cluster: ChosenCluster, name: str, yes: bool, output: str | None) -> None:
    """List the checkpoints of a job, newest first.

    A job may resume from those that are resumable; an abandoned one lies beyond
    a step from which a later generation resumed. `verify` looks for damage.
    A worker's pod lists them. While none runs, the newest alone is known, unless
    --yes lets this command make a pod for a moment that reads the volume.
    """
    found = _listed(cluster, name, yes)
    if print_for_programs(found, output, resource_name(name)):
        return
    if not found:
        click.echo(f"{name} has saved no checkpoint.")
    else:
        show(_table(found, wide=output == "wide"))


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob checkpoint verify gpt",
        "kubectl trainingjob checkpoint verify gpt --step 4000 --yes",
    ),
)
@job_argument()
@_step("all")
@_YES
@output_option()
@on_cluster
def verify(
    cluster: ChosenCluster, name: str, step: int | None, yes: bool, output: str | None
) -> None:
    """Read checkpoints, and compare them with their checksums.

    It makes a pod for a moment that has the volume read-only, after a question.
    Exit code: 0 whole, 1 damaged or an error, 3 the volume could not be read.
    """
    from regroup.diagnosis.reader_pod import with_step
    from regroup.kubernetes.cluster_api import lines_of
    from regroup.local.checkpoint_list import read_verifications
    from regroup_trainer.protocol.message import printable

    lines = []
    with _reading(cluster, name, with_step(["verify"], step), yes) as stream:
        for line in lines_of(stream.chunks()):
            lines.append(printable(line.decode(errors="replace")))
            if output not in FOR_PROGRAMS:
                click.echo(lines[-1])
        ended = _require_end(stream)
    report = {"exitCode": ended.exit_code, "checkpoints": read_verifications(lines)}
    print_for_programs(report, output, resource_name(name))
    if said := ended.stderr.strip():
        note(printable(said))
    sys.exit(ended.exit_code)


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob checkpoint export gpt --out gpt.safetensors",
        "kubectl trainingjob checkpoint export gpt --step 4000 --out 4000.safetensors",
    ),
)
@job_argument()
@_step("the newest")
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="The file of safetensors to write; it must not be there.",
)  # fmt: skip
@_YES
@output_option()
@on_cluster
def export(
    cluster: ChosenCluster, name: str, step: int | None, out: Path, yes: bool, output: str | None
) -> None:
    """Write the weights of a checkpoint to a file of this machine.

    It makes a pod for a moment that has the volume read-only, after a question.
    The checkpoint is verified first, and the file at last.
    """
    from regroup.diagnosis.reader_pod import with_step
    from regroup.kubernetes.quantities import size
    from regroup.local.checkpoint_list import EXPORT_COMMAND

    if out.exists():
        raise click.UsageError(f"--out {out} is there: choose another")
    partial = out.with_name(f"{out.name}.partial")
    with _writable(out):
        file = partial.open("wb")
    try:
        with file, _reading(cluster, name, with_step(EXPORT_COMMAND, step), yes) as stream:
            checksum, count = _write(file, stream.chunks(), out)
            saved = _exported_step(_require_end(stream), checksum)
        with _writable(out):
            partial.rename(out)
    finally:
        partial.unlink(missing_ok=True)
    report = {"path": str(out), "step": int(saved), "sizeBytes": count, "blake2b": checksum}
    if not print_for_programs(report, output, str(out)):
        click.echo(f"step {saved} written to {out}: {size(count)}")


def _listed(cluster: ChosenCluster, name: str, yes: bool) -> list[SavedCheckpoint]:
    """The checkpoints, as far as they can be read."""
    from regroup.kubernetes.job_record import read_job
    from regroup.kubernetes.pod_record import newest_running, read_pods
    from regroup.local.checkpoint_list import (
        LIST_COMMAND,
        directory_of,
        only_newest,
        worker_command,
    )
    from regroup_operator.api.names import WORKER

    api, namespace = cluster.api, cluster.namespace
    newest = read_job(api.job(namespace, name)).status.checkpoint
    directory = directory_of(newest)
    if directory is None:
        return only_newest(newest)
    if worker := newest_running(read_pods(api.pods(namespace, name)), WORKER):
        words = worker_command(worker.command, directory)
        return _read(api.run_in_pod(namespace, worker, words, LIST_SECONDS))
    if not yes:
        note(
            f"No worker of {name} runs, so this is the newest alone. --yes makes a pod for a "
            "moment that reads them all."
        )
        return only_newest(newest)
    with _reading(cluster, name, LIST_COMMAND, yes) as stream:
        text = b"".join(stream.chunks()).decode(errors="replace")
        return _read(replace(_require_end(stream), stdout=text))


def _read(listed: CommandOutput) -> list[SavedCheckpoint]:
    from regroup.local.checkpoint_list import read_list

    _require_success(listed)
    try:
        return read_list(listed.stdout)
    except ValueError:
        raise click.ClickException(
            "what the pod lists cannot be read: use a client of the job's release"
        ) from None


def _table(found: Sequence[SavedCheckpoint], *, wide: bool) -> list[str]:
    from regroup.kubernetes.quantities import size
    from regroup.kubernetes.text_tables import table

    header = ("STEP", "SIZE", "STATE", *(("FOLDER",) if wide else ()))
    rows = (
        (one.step, size(one.size_bytes), _state(one), *((one.path,) if wide else ()))
        for one in found
    )
    return table(header, rows)


def _state(one: SavedCheckpoint) -> str:
    """Whether the job may resume from it."""
    if one.problem:
        return f"damaged: {one.problem}"
    return "resumable" if one.resumable else "abandoned"


@contextmanager
def _reading(
    cluster: ChosenCluster, name: str, words: Sequence[str], yes: bool
) -> Iterator[CommandStream]:
    """Inside, a command of the trainer runs in a pod of the moment."""
    from regroup.diagnosis.job_reader import checkpoint_reader, running_reader
    from regroup.diagnosis.reader_pod import LIFE_SECONDS, UnreadableJobError

    api, namespace = cluster.api, cluster.namespace
    try:
        reader = checkpoint_reader(api, namespace, name, words)
        if not yes:
            note(
                f"This makes pod {reader.body['metadata']['name']} in namespace {namespace}, with "
                f"claim {reader.claim} mounted read-only, and deletes it afterwards."
            )
            click.confirm("Make it?", abort=True, err=True)
        with (
            running_reader(api, namespace, name, reader) as pod,
            api.stream_from_pod(namespace, pod, reader.command, LIFE_SECONDS) as stream,
        ):
            yield stream
    except UnreadableJobError as error:
        raise click.ClickException(str(error)) from None


@contextmanager
def _writable(out: Path) -> Iterator[None]:
    """Raises what this machine's disk says as a click.ClickException. Else it would pass for an
    error of the connection.
    """
    try:
        yield
    except OSError as error:
        raise click.ClickException(
            f"--out {out} cannot be written ({error.strerror}): choose another"
        ) from None


def _write(file: BinaryIO, chunks: Iterable[bytes], out: Path) -> tuple[str, int]:
    """Write a stream to a file; returns its checksum and its bytes."""
    checksum, count = hashlib.blake2b(), 0
    for chunk in chunks:
        checksum.update(chunk)
        with _writable(out):
            count += file.write(chunk)
    with _writable(out):
        file.flush()
    return checksum.hexdigest(), count


def _exported_step(ended: CommandOutput, checksum: str) -> str:
    """The step that was exported, once the checksum of what has come is that of what was sent."""
    from regroup.local.checkpoint_list import exported_step

    _require_success(ended)
    if (step := exported_step(ended.stderr, checksum)) is None:
        raise click.ClickException("what has come is not what was sent: try again")
    return step


def _require_end(stream: CommandStream) -> CommandOutput:
    if stream.output is None:
        raise click.ClickException("the pod has not said how its command ended: try again")
    return stream.output


def _require_success(ended: CommandOutput) -> None:
    from regroup.local.checkpoint_list import error_of

    if ended.exit_code:
        raise click.ClickException(error_of(ended.stderr, ended.exit_code))
