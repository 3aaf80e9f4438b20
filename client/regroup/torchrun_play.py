"""`regroup run` of a job with `launcher: torchrun`: from its file to processes, and what is told about them."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from regroup.display import Display
from regroup.faults import Fault
from regroup.local import LocalRunError
from regroup.local_torchrun import Outcome, TorchrunRun, Wanted
from regroup.manifest import Document
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
        ranks=spec.nproc_per_node if isinstance(spec.nproc_per_node, int) else 1,
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
            outcome = asyncio.run(_until_the_end(run, display))
        except (LocalRunError, OSError) as error:
            raise click.ClickException(str(error)) from None
    summary = _summarize(run, outcome, time.monotonic() - start)
    click.echo(f"{outcome.outcome}: {outcome.message}; {run.restarts} workers replaced, {summary['wallSeconds']:.1f} s")
    if summary_file is not None:
        summary_file.parent.mkdir(parents=True, exist_ok=True)
        summary_file.write_text(json.dumps(summary, indent=2) + "\n")
    return 0 if outcome.outcome == "completed" else 1


def _require_possible(faults: Sequence[Fault]) -> None:
    for fault in faults:
        if fault.unit == "step":
            raise click.ClickException(f"--kill {fault}: nobody knows torchrun's steps: write @seconds= or @line=")
        if fault.kind == "coordinator":
            raise click.ClickException(f"--kill {fault}: torchrun has no coordinator: kill a worker or a rank")


async def _until_the_end(run: TorchrunRun, display: Display) -> Outcome:
    def suspend() -> None:
        display.note("stopping")
        run.suspend()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, suspend)
    return await run.run()


def _summarize(run: TorchrunRun, outcome: Outcome, wall_seconds: float) -> dict[str, Any]:
    """A JSON object; times in seconds. Steps and losses are the script's own matter."""
    return {
        "outcome": outcome.outcome,
        "message": outcome.message,
        "restarts": run.restarts,
        "attempts": run.attempt,
        "wallSeconds": wall_seconds,
    }
