"""`bundle`: packs what a ticket about a job needs."""

from __future__ import annotations

import io
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import click

from regroup.cli.cluster_options import (
    ChosenCluster,
    Verb,
    job_argument,
    note,
    on_cluster,
    output_option,
    print_for_programs,
    show,
)


@click.command(
    cls=Verb,
    examples=(
        "kubectl trainingjob bundle gpt",
        "kubectl trainingjob bundle gpt --file ticket-17.tar.gz --tail 10000",
    ),
)
@job_argument()
@click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The archive to write.  [default: NAME-TIME.tar.gz]",
)
@click.option(
    "--tail", type=click.IntRange(min=1), default=2000, show_default=True, metavar="N",
    help="Lines of each log.",
)  # fmt: skip
@click.option(
    "--operator-namespace", default="regroup-system", show_default=True, metavar="NAME",
    help="Where the operator is.",
)  # fmt: skip
@output_option(wide="the files; name is that of the archive")
@on_cluster
def bundle(
    cluster: ChosenCluster,
    name: str,
    file: Path | None,
    tail: int,
    operator_namespace: str,
    output: str | None,
) -> None:
    """Pack what a ticket needs, from status to stacks.

    Secrets are not read. Values of variables, and what looks like a password or
    token in texts, are replaced. Look through the archive before you send it.
    """
    from regroup.diagnosis.bundle import Bundle

    now = datetime.now(UTC)
    collected = Bundle(cluster.api, cluster.namespace, name)
    files = collected.collect(operator_namespace, tail)
    target = file or Path(f"{name}-{now:%Y%m%d-%H%M%S}.tar.gz")
    try:
        write(target, target.name.partition(".")[0], files, now)
    except OSError as error:
        raise click.ClickException(f"--file {target}: {error.strerror or error}") from None
    for missing in collected.missing:
        note(f"left out: {missing}")
    report = {"path": str(target), "files": sorted(files), "missing": collected.missing}
    if not print_for_programs(report, output, str(target)):
        click.echo(f"{target}: {len(files)} files")
        show(f"  {path}" for path in sorted(files) if output == "wide")


def write(target: Path, folder: str, files: dict[str, str], now: datetime) -> None:
    """Write an archive that only its owner may read. Raises OSError."""
    target.touch(mode=0o600)
    if target.is_file():
        target.chmod(0o600)  # it may have been there, for others to read
    with tarfile.open(target, "w:gz") as archive:
        for path, text in sorted(files.items()):
            content = text.encode(errors="backslashreplace")
            entry = tarfile.TarInfo(f"{folder}/{path}")
            entry.size, entry.mtime, entry.mode = len(content), int(now.timestamp()), 0o600
            archive.addfile(entry, io.BytesIO(content))
