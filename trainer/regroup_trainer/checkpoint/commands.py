"""`regroup checkpoint`: list, verify, export and prune the checkpoints in a job's directory.

It needs nothing but the directory on any mounted volume; only `export` needs torch.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

import click

from regroup_trainer.checkpoint import catalog, lineage, publish
from regroup_trainer.checkpoint.catalog import Candidate
from regroup_trainer.checkpoint.layout import Layout, Manifest
from regroup_trainer.checkpoint.lineage import LineageRecord
from regroup_trainer.errors import FencedError, TrainingError
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.message import printable, shorten
from regroup_trainer.system.memory_limit import describe_bytes

EXIT_DAMAGED, EXIT_UNREAD = 1, 3
_HEADER = ("STEP", "SAVED", "SIZE", "RANKS", "STRATEGY", "GEN", "STATE")
"""Columns that fit a terminal of 80, also after millions of steps by thousands of ranks."""
_GAP = "   "
_STANDARD_OUTPUT = Path("-")
_DIRECTORY = click.argument(
    "directory", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
_STEP = click.option(
    "--step", type=click.IntRange(0), help="The checkpoint of this step; the newest by default."
)


_EXAMPLES = """\b
Examples:
  regroup checkpoint list regroup-runs/gpt
  regroup checkpoint verify /mnt/shared/gpt --step 500
  regroup checkpoint export /mnt/shared/gpt --out gpt-500
  regroup checkpoint export /mnt/shared/gpt --out - > model.safetensors
  regroup checkpoint prune /mnt/shared/gpt --keep-last 2 --dry-run
"""


def _examples_of(verb: str) -> str:
    """Those of one verb, for its help."""
    _, *lines = _EXAMPLES.splitlines()
    return "\n".join(
        ["\b", *(line for line in lines if line == "Examples:" or f" {verb} " in line)]
    )


class _UnreadError(click.ClickException):
    """The volume is at fault, or a right is missing."""

    exit_code = EXIT_UNREAD


class _Commands(click.Group):
    """Says what could not be read: that is no damage."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno == errno.EPIPE:  # click ends quietly
                raise
            raise _UnreadError(
                f"{error.filename or 'the volume'}: {error.strerror or error}: this says nothing "
                "about the checkpoints; check the rights and the mount, then try again"
            ) from None


@click.group(cls=_Commands, epilog=_EXAMPLES)
def main() -> None:
    """Checkpoints in the directory of a job: the folder that holds `checkpoints` and `lineage`.
    Exit code 3: the volume or a file could not be read.
    """


@main.command("list", epilog=_examples_of("list"))
@_DIRECTORY
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of a table.")
def list_checkpoints(directory: Path, as_json: bool) -> None:
    """Show all checkpoints, newest first.

    A job would resume from those that are resumable. An abandoned one lies beyond a step from which
    a later generation resumed.
    """
    layout = _layout(directory)
    found = catalog.published(layout)
    counting = {candidate.step for candidate in _counting(found, _records(layout))}
    if as_json:
        click.echo(
            json.dumps(
                [_facts(candidate, candidate.step in counting) for candidate in found], indent=2
            )
        )
        return
    if not found:
        click.echo(f"{layout.checkpoints} holds no checkpoint")
        return
    rows = [_HEADER, *(_row(candidate, candidate.step in counting) for candidate in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo(_GAP.join(cells).rstrip())
    for candidate in found:
        if candidate.manifest is None:
            click.echo(f"step {candidate.step}: damaged: {printable(candidate.problem)}")


@main.command(epilog=_examples_of("verify"))
@_DIRECTORY
@_STEP
def verify(directory: Path, step: int | None) -> None:
    """Compare checkpoints with their checksums.

    Without --step it reads all of them. Exit code 1: damaged.
    """
    layout = _layout(directory)
    chosen = catalog.published(layout) if step is None else [_choose(layout, step)]
    damaged = 0
    for candidate in chosen:
        problem = candidate.problem
        if candidate.manifest is not None:
            problem = catalog.verify(candidate.path, candidate.manifest, candidate.manifest.files)
        damaged += bool(problem)
        size = describe_bytes(candidate.manifest.size_bytes) if candidate.manifest else ""
        click.echo(
            f"step {candidate.step}: damaged: {problem}"
            if problem
            else f"step {candidate.step}: whole ({size})"
        )
    if not chosen:
        raise click.ClickException(f"{layout.checkpoints} holds no checkpoint")
    if damaged:
        click.echo("a job passes damaged ones over and resumes from the newest whole one", err=True)
        sys.exit(EXIT_DAMAGED)


@main.command(epilog=_examples_of("export"))
@_DIRECTORY
@_STEP
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, allow_dash=True, path_type=Path),
    help="Folder to write; `-`: one file of safetensors, without config.json, to standard output.",
)
def export(directory: Path, step: int | None, out: Path) -> None:
    """Write the model as safetensors.

    The folder has Hugging Face's layout. The checkpoint is verified before.
    """
    candidate = _choose(_layout(directory), step)
    if out == _STANDARD_OUTPUT:
        _export_to_standard_output(candidate)
        return
    manifest = _verified(candidate)
    if out.exists() and any(out.iterdir()):
        raise click.ClickException(f"--out {out} is not empty: name a new folder")
    from regroup_trainer.checkpoint.export import export as write

    with _explained(out):
        files = write(candidate.path, manifest, out)
    for file in files:
        click.echo(f"{file}  {describe_bytes(file.stat().st_size)}")


def _export_to_standard_output(candidate: Candidate[Manifest]) -> None:
    """Whoever reads a long stream sees on standard error that it goes on, and its checksum."""
    with _standard_output() as out:
        manifest = _verified(candidate, lambda name: click.echo(f"verified {name}", err=True))
        from regroup_trainer.checkpoint.export import write_stream

        with _explained(_STANDARD_OUTPUT):
            checksum = write_stream(candidate.path, manifest, out)
    click.echo(f"step {candidate.step} blake2b {checksum}", err=True)


@contextmanager
def _standard_output() -> Iterator[BinaryIO]:
    """Inside, what any library prints goes to standard error, and only this to standard output."""
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        yield out


def _verified(candidate: Candidate[Manifest], on_file: Callable[[str], object] = str) -> Manifest:
    """The manifest, once all files are compared with it. Raises ClickException."""
    manifest = candidate.manifest
    if manifest is None:
        raise _damaged(candidate, candidate.problem)
    for name in manifest.files:
        if problem := catalog.verify(candidate.path, manifest, [name]):
            raise _damaged(candidate, problem)
        on_file(name)
    return manifest


def _damaged(candidate: Candidate[Manifest], problem: str) -> click.ClickException:
    return click.ClickException(f"{candidate.path} is damaged: {problem}: choose another step")


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    """Raise what an export raises as a ClickException."""
    try:
        yield
    except OSError as error:
        raise click.ClickException(
            f"--out {out} cannot be written ({error}): free it or choose another"
        ) from error
    except TrainingError as error:
        raise click.ClickException(str(error)) from error


@main.command(epilog=_examples_of("prune"))
@_DIRECTORY
@click.option(
    "--keep-last", type=click.IntRange(1), required=True, help="How many of the newest stay."
)
@click.option("--keep-every-steps", type=click.IntRange(1), help="Multiples of this step stay too.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
def prune(directory: Path, keep_last: int, keep_every_steps: int | None, dry_run: bool) -> None:
    """Delete old checkpoints.

    One that is damaged or abandoned is left alone and does not count.
    """
    layout = _layout(directory)
    records = _records(layout)
    ours = _counting(catalog.published(layout), records)
    steps = [candidate.step for candidate in ours if candidate.manifest]
    going = catalog.removable(steps, keep_last, keep_every_steps)
    for step in going:
        if not dry_run:
            _remove(layout, step, max(records))
        click.echo(f"step {step}: {'would go' if dry_run else 'deleted'}")
    click.echo(f"{len(steps) - len(going)} stay")


def _remove(layout: Layout, step: int, newest: GenerationNumber) -> None:
    try:
        publish.remove(layout, step, newest)
    except FencedError as error:
        raise click.ClickException(
            f"{error}, and may need step {step}: it stays; prune again"
        ) from error
    except OSError as error:
        raise click.ClickException(
            f"{layout.published(step)} cannot be deleted: {error.strerror}"
        ) from error


def _layout(directory: Path) -> Layout:
    layout = Layout(directory)
    if not (layout.checkpoints.is_dir() or layout.lineage.is_dir()):
        raise click.ClickException(
            f"{directory} is no job's directory, it has no folder `checkpoints` or `lineage`: name "
            "[subPath/]NAMESPACE/JOB-UID on "
            f"the volume, or regroup-runs/JOB for a local run"
        )
    return layout


def _counting(
    found: list[Candidate[Manifest]], records: dict[GenerationNumber, LineageRecord]
) -> list[Candidate[Manifest]]:
    """Those of the current lineage."""
    return catalog.on_lineage(found, lineage.chain(records, max(records, default=None)))


def _records(layout: Layout) -> dict[GenerationNumber, LineageRecord]:
    try:
        return lineage.read(layout)
    except TrainingError as error:
        raise click.ClickException(str(error)) from error


def _choose(layout: Layout, step: int | None) -> Candidate[Manifest]:
    found = catalog.published(layout)
    candidates = _counting(found, _records(layout)) if step is None else found
    chosen = next((candidate for candidate in candidates if step in (None, candidate.step)), None)
    if not candidates:
        raise click.ClickException(f"{layout.checkpoints} holds no checkpoint to resume from")
    if chosen is None:
        there = ", ".join(str(candidate.step) for candidate in candidates)
        raise click.ClickException(
            f"--step {step}: not in {layout.checkpoints}: choose one of {there}"
        )
    return chosen


def _row(candidate: Candidate[Manifest], counts: bool) -> tuple[str, ...]:
    """Cells below _HEADER."""
    manifest = candidate.manifest
    if manifest is None:
        return (str(candidate.step), *[""] * (len(_HEADER) - 2), "damaged")
    return (
        str(candidate.step),
        datetime.fromtimestamp(manifest.time).astimezone().strftime("%Y-%m-%d %H:%M"),
        describe_bytes(manifest.size_bytes),
        str(manifest.world_size),
        shorten(manifest.strategy),
        str(manifest.generation),
        "resumable" if counts else "abandoned",
    )


def _facts(candidate: Candidate[Manifest], counts: bool) -> dict[str, object]:
    manifest = candidate.manifest
    facts: dict[str, object] = {
        "step": candidate.step,
        "path": str(candidate.path),
        "problem": candidate.problem,
    }
    if manifest is not None:
        described = manifest.model_dump(
            mode="json", include={"world_size", "strategy", "time", "position", "tokens"}
        )
        facts |= {
            **described,
            "sizeBytes": manifest.size_bytes,
            "generation": str(manifest.generation),
        }
    return {**facts, "resumable": counts and manifest is not None}
