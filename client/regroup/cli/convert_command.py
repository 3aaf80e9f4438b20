"""`regroup convert`: turns the jobs of others into TrainingJobs. What it needs is imported late."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from regroup.cli.cluster_options import Verb, note

if TYPE_CHECKING:
    from regroup.cli.manifest import Document
    from regroup.converting.conversion import Conversion
    from regroup.converting.draft import ConvertOptions
    from regroup.converting.source import Note

    _Result = tuple[Conversion, list[Document]]

EXIT_REFUSED = 1
_COMMAND = "regroup.command"
_CODE = "The code that the job below runs."
_SCRIPT = re.compile(r"\A#!|^#SBATCH\b", re.MULTILINE)
"""What a script has, and YAML has only in comments."""


class _WithCommand(Verb):
    """A command whose arguments behind `--` are the command line of another program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what stands behind `--` for later."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """As other commands have it, with the command line."""
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


@click.command(
    "convert",
    cls=_WithCommand,
    examples=(
        "regroup convert pytorchjob.yaml > job.yaml",
        "regroup convert trainjob.yaml runtime.yaml --claim data",
        "kubectl get pytorchjob mnist -o yaml | regroup convert -",
        "regroup convert train.sbatch --image my/image:1",
        "regroup convert -- torchrun --nnodes 2 --nproc-per-node 8 train.py",
        "regroup convert -- srun -N 4 --gpus-per-node 8 torchrun train.py",
    ),
)
@click.argument(
    "files", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File to write."
)
@click.option(
    "--claim",
    metavar="NAME",
    show_default="the one that the pods mount, else checkpoints",
    help="Claim of the volume, for jobs that share one.",
)
@click.option("--image", help="Image of the workers, where the source names none.")
@click.option(
    "--entrypoint",
    metavar="COMMAND",
    help="What the image starts by itself, for sources without a command.",
)
@click.option("--name", metavar="NAME", help="Name of the job, for scripts and commands.")
@click.pass_context
def convert(
    ctx: click.Context, /, files: tuple[Path, ...], output: Path | None, **given: Any
) -> None:
    """Turn the jobs of others into TrainingJobs: PyTorchJob, TrainJob with its runtime, RayJob, a
    script for sbatch, or the command line of torchrun, accelerate or srun.

    Each FILE has YAML or a script; - is standard input. What is left out, and
    why, goes to standard error and into comments of the result.

    Exit codes: 0 all jobs are converted, 1 one is refused or none was found, 2 a
    wrong command line.
    """
    command: list[str] = ctx.meta[_COMMAND]
    if bool(files) == bool(command):
        raise click.UsageError("give FILE, or -- and a command line")
    options = _options(**given)
    results = _of_command(command, options) if command else _of_files(files, options)
    texts = [_report(*result) for result in results]
    _write("---\n".join(filter(None, texts)), output)
    if not any(texts) and None not in texts:
        note(_nothing_found())
    if None in texts or not any(texts):
        sys.exit(EXIT_REFUSED)


def _nothing_found() -> str:
    from regroup.converting.conversion import KNOWN

    return f"there is no job to convert: give {KNOWN}, or a script for sbatch"


def _options(entrypoint: str | None, **given: Any) -> ConvertOptions:
    """Raises click.UsageError."""
    from regroup.converting.draft import ConvertOptions

    try:
        return ConvertOptions(entrypoint=tuple(shlex.split(entrypoint or "")), **given)
    except ValueError as error:
        raise click.UsageError(f"--entrypoint {entrypoint}: {error}") from None


def _of_command(words: Sequence[str], options: ConvertOptions) -> list[_Result]:
    from regroup.cli.manifest import Document
    from regroup.converting.conversion import convert_command

    return [(convert_command(words, options), [Document(Path("command line"), None)])]


def _of_files(files: Sequence[Path], options: ConvertOptions) -> list[_Result]:
    """Documents of all files are converted together. Raises click.ClickException."""
    from regroup.cli.manifest import Document, ManifestError, parse_documents, read_text
    from regroup.converting.conversion import convert_documents, convert_script

    documents: list[Document] = []
    scripts: list[_Result] = []
    try:
        for file in files:
            text = read_text(file)
            if _SCRIPT.search(text):
                scripts.append((convert_script(text, options), [Document(file, None)]))
            else:
                documents += parse_documents(file, text)
    except (ManifestError, OSError) as error:
        raise click.ClickException(str(error)) from None
    found = convert_documents([document.value for document in documents], options)
    return [*((conversion, documents) for conversion in found), *scripts]


def _report(conversion: Conversion, documents: Sequence[Document]) -> str | None:
    """Say what became of a document. The job as YAML; None where it is refused, and empty for what
    is no job.
    """
    from regroup.converting.job_yaml import job_yaml

    source = click.format_filename(documents[conversion.document].file)
    problems = _problems(conversion, documents)
    for problem in problems:
        note(f"{source}: {conversion.title} cannot be converted: {problem}")
    if problems:
        return None
    for one in conversion.left_out:
        note(_sentence(one, documents))
    for check in conversion.checks:
        note(f"{source}: {check}")
    if conversion.job is None:
        return ""
    origin = f"Converted by regroup convert from {source}: {conversion.title}"
    left = [_comment(one) for one in conversion.left_out]
    text = job_yaml(conversion.job, [origin, *left, *conversion.checks])
    if conversion.config_map is None:
        return text
    return "---\n".join((job_yaml(conversion.config_map, [_CODE]), text))


def _problems(conversion: Conversion, documents: Sequence[Document]) -> list[str]:
    """Why there is no job, or why the job would not be accepted."""
    from regroup.cli.manifest import Document
    from regroup.cli.validation import validate

    if conversion.refusal:
        return [_sentence(conversion.refusal, documents)]
    if conversion.job is None:
        return []
    document = Document(documents[conversion.document].file, dict(conversion.job))
    return [f"{problem.field}: {problem.message}" for problem in validate(document)]


def _sentence(one: Note, documents: Sequence[Document]) -> str:
    """A note with file, line and field."""
    from regroup.converting.source import shown

    document = documents[one.document]
    place = tuple(step if isinstance(step, int) else str(step) for step in one.place)
    line = one.line or document.line_of(place)
    field = f"{shown(one.place)}: " if one.place else ""
    return f"{click.format_filename(document.file)}:{line}: {field}{one.text}"


def _comment(one: Note) -> str:
    """A note as a comment of the job, which need not lie beside its source."""
    from regroup.converting.source import shown

    return f"{shown(one.place) if one.place else f'line {one.line}'}: {one.text}"


def _write(text: str, output: Path | None) -> None:
    """Write the jobs. Raises click.ClickException."""
    if not text:
        return
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(str(error)) from None
