"""`regroup run` of a job with `launcher: torchrun`: from its file to processes, and what is told about them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from regroup.display import Display
from regroup.faults import Fault
from regroup.interruption import until_the_end
from regroup.local import LocalRunError
from regroup.local_torchrun import Outcome, TorchrunRun, Wanted
from regroup.manifest import Document
from regroup.summary import write
from regroup.wish import ranks_per_worker
from regroup_operator.api import TrainingJobSpec
from regroup_operator.launcher import COMMAND_FIELD, own_script


def torchrun_wanted(spec: TrainingJobSpec, document: Document, folder: Path, workers: int | None) -> Wanted:
    """What the file asks for; `workers` overrides `replicas`. Raises click.ClickException without a script."""
    script = own_script(spec.template)
    if script is None:
        raise click.ClickException(f"{COMMAND_FIELD}: is missing")
    replicas = workers or spec.replicas
    return Wanted(
        job=document.name,
        script=script,
        replicas=replicas,
        nnodes=f"{min(spec.min_replicas, replicas)}:{max(spec.max_replicas, replicas)}",
        ranks=ranks_per_worker(spec),
        max_restarts=spec.restart_policy.max_restarts,
        working_directory=document.file.absolute().parent,
        directory=folder,
    )


def play_torchrun(wanted: Wanted, faults: Sequence[Fault], plain: bool, summary_file: Path | None) -> int:
    """Run to the end and tell it; the exit code."""
    _require_possible(faults)
    run = TorchrunRun(wanted, faults)
    start = time.monotonic()
    with Display(Console(), plain) as display:
        run.on_line, run.on_note = display.line, display.note
        try:
            outcome = asyncio.run(until_the_end(run, display.note, "stopping"))
        except (LocalRunError, OSError) as error:
            raise click.ClickException(str(error)) from None
    summary = _summarize(run, outcome, time.monotonic() - start)
    click.echo(f"{outcome.outcome}: {outcome.message}; {run.restarts} workers replaced, {summary['wallSeconds']:.1f} s")
    if summary_file is not None:
        write(summary, summary_file)
    return 0 if outcome.outcome == "completed" else 1


def _require_possible(faults: Sequence[Fault]) -> None:
    for fault in faults:
        if fault.unit == "step":
            raise click.ClickException(f"--kill {fault}: nobody knows torchrun's steps: write @seconds= or @line=")
        if fault.kind == "coordinator":
            raise click.ClickException(f"--kill {fault}: torchrun has no coordinator: kill a worker or a rank")


def _summarize(run: TorchrunRun, outcome: Outcome, wall_seconds: float) -> dict[str, Any]:
    """A JSON object; times in seconds. Steps and losses are the script's own matter."""
    return {
        "outcome": outcome.outcome,
        "message": outcome.message,
        "restarts": run.restarts,
        "attempts": run.attempt,
        "wallSeconds": wall_seconds,
    }
