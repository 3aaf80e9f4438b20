"""`validate`: checks files of TrainingJobs without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from regroup.cli.cluster_options import Verb

if TYPE_CHECKING:
    from regroup.cli.job_code import JobFile
    from regroup.cli.manifest import Document
    from regroup.cli.validation import Problem

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
    for found in checked_files(files):
        for document in found.jobs:
            shown = click.format_filename(document.file)
            beside = f", and so is ConfigMap {found.code.name}" if found.code else ""
            click.echo(f"{shown}: TrainingJob {document.name} is valid{beside}")


def checked_files(files: Sequence[Path]) -> list[JobFile]:
    """What the files hold. Prints the problems of all and exits where one has any."""
    results = [find_problems(file) for file in files]
    problems = [problem for _, problems in results for problem in problems]
    for problem in problems:
        click.echo(str(problem), err=True)
    if problems:
        sys.exit(EXIT_PROBLEMS)
    return [found for found, _ in results]


def find_problems(file: Path, on_cluster: bool = True) -> tuple[JobFile, list[Problem]]:
    """What a file holds, and what is wrong with it. Raises click.ClickException."""
    from regroup.cli.job_code import mismatches, separate
    from regroup.cli.validation import validate as problems_of

    found, problems = separate(_read(file))
    of_jobs = [problem for job in found.jobs for problem in problems_of(job, on_cluster)]
    problems += of_jobs or ([] if problems else mismatches(found))
    return found, sorted(problems, key=lambda problem: problem.line)


def _read(file: Path) -> list[Document]:
    """The documents of a file. Raises click.ClickException where there is none."""
    from regroup.cli.manifest import ManifestError, read_documents

    try:
        documents = read_documents(file)
    except (ManifestError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if not documents:
        raise click.ClickException(f"{file}: is empty")
    return documents
