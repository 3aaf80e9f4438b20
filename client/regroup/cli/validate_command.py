"""`validate`: checks files of TrainingJobs without a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from regroup.cli.cluster_options import Verb, output_option, print_structured, resource_name

if TYPE_CHECKING:
    from regroup.cli.job_code import JobFile
    from regroup.cli.validation import Problem

EXIT_PROBLEMS = 1
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    cls=Verb,
    examples=("regroup validate job.yaml", "regroup validate jobs/*.yaml"),
)
@click.argument("files", nargs=-1, required=True, type=_FILE)
@output_option()
def validate(files: tuple[Path, ...], output: str | None) -> None:
    """Check TrainingJob files. Every problem is shown with its line.

    The checks are those of the operator, but for what only the cluster knows, such as claims.

    Exit codes: 0 all are valid, 1 one is not.
    """
    check(files, output)


@click.command("validate", cls=Verb, examples=("kubectl trainingjob validate -f job.yaml",))
@click.option(
    "-f", "--filename", "files", multiple=True, required=True, type=_FILE, help="A file; repeat it."
)
@output_option()
def validate_files(files: tuple[Path, ...], output: str | None) -> None:
    """Check files without a cluster.

    Every problem is shown with its line.
    """
    check(files, output)


def check(files: Sequence[Path], output: str | None = None) -> None:
    """Say of each job that it is valid, or exit with the problems of all."""
    if output in ("json", "yaml"):
        _print_report(files, output)
        return
    for found in checked_files(files):
        for document in found.jobs:
            if output == "name":
                click.echo(resource_name(document.name))
                continue
            shown = click.format_filename(document.file)
            beside = f", and so is ConfigMap {found.code.name}" if found.code else ""
            click.echo(f"{shown}: TrainingJob {document.name} is valid{beside}")


def _print_report(files: Sequence[Path], output: str) -> None:
    """What `check` says, as one object."""
    results = [find_problems(file) for file in files]
    jobs = [
        {"file": click.format_filename(document.file), "name": document.name}
        for found, problems in results
        if not problems
        for document in found.jobs
    ]
    problems = _all_problems(results)
    report = {"valid": not problems, "jobs": jobs, "problems": problems}
    print_structured(report, output)
    sys.exit(EXIT_PROBLEMS if problems else 0)


def checked_files(files: Sequence[Path]) -> list[JobFile]:
    """What the files hold. Prints the problems of all and exits where one has any."""
    results = [find_problems(file) for file in files]
    problems = _all_problems(results)
    for problem in problems:
        click.echo(str(problem), err=True)
    if problems:
        sys.exit(EXIT_PROBLEMS)
    return [found for found, _ in results]


def _all_problems(results: Sequence[tuple[JobFile, list[Problem]]]) -> list[Problem]:
    return [problem for _, problems in results for problem in problems]


def find_problems(file: Path, on_cluster: bool = True) -> tuple[JobFile, list[Problem]]:
    """What a file holds, and what is wrong with it."""
    from regroup.cli.job_code import JobFile, mismatches, separate
    from regroup.cli.manifest import ManifestError, read_documents
    from regroup.cli.validation import Problem
    from regroup.cli.validation import validate as problems_of

    shown = click.format_filename(file)
    documents, line, message = [], 0, "is empty: give the file of a job"
    try:
        documents = read_documents(file)
    except ManifestError as error:
        line, message = error.line, error.message
    except OSError as error:
        message = error.strerror or str(error)
    if not documents:
        return JobFile([], None), [Problem(shown, line, "", message)]
    found, problems = separate(documents)
    of_jobs = [problem for job in found.jobs for problem in problems_of(job, on_cluster)]
    problems += of_jobs or ([] if problems else mismatches(found))
    return found, sorted(problems, key=lambda problem: problem.line)
