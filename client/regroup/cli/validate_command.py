"""`validate`: checks files of TrainingJobs without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from regroup.cli.cluster_options import Verb

if TYPE_CHECKING:
    from regroup.cli.manifest import Document

EXIT_PROBLEMS = 1
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    cls=Verb,
    examples=("regroup validate job.yaml", "regroup validate jobs/*.yaml"),
)
@click.argument("files", nargs=-1, required=True, type=_FILE)
def validate(files: tuple[Path, ...]) -> None:
    """Check TrainingJob files. Every problem is shown with its line.

    The checks are those of the operator, but for what only the cluster knows, such as claims.

    Exit codes: 0 all are valid, 1 one is not.
    """
    check(files)


@click.command("validate", cls=Verb, examples=("kubectl trainingjob validate -f job.yaml",))
@click.option(
    "-f", "--filename", "files", multiple=True, required=True, type=_FILE, help="A file; repeat it."
)
def validate_files(files: tuple[Path, ...]) -> None:
    """Check files without a cluster.

    Every problem is shown with its line.
    """
    check(files)


def check(files: Sequence[Path]) -> None:
    """Say of each job that it is valid, or exit with the problems of all."""
    for document in checked_documents(files):
        shown = click.format_filename(document.file)
        click.echo(f"{shown}: TrainingJob {document.name} is valid")


def checked_documents(files: Sequence[Path]) -> list[Document]:
    """The jobs of files. Prints the problems of all and exits where one has any."""
    from regroup.cli.validation import validate as find_problems

    documents = [document for file in files for document in read(file)]
    problems = [problem for document in documents for problem in find_problems(document)]
    for problem in problems:
        click.echo(str(problem), err=True)
    if problems:
        sys.exit(EXIT_PROBLEMS)
    return documents


def read(file: Path) -> list[Document]:
    """The jobs of a file. Raises click.ClickException where there is none."""
    from regroup.cli.manifest import ManifestError, read_documents

    try:
        documents = read_documents(file)
    except (ManifestError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if not documents:
        raise click.ClickException(f"{file}: is empty")
    return documents
