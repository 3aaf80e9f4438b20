"""`regroup run` of a job with `launcher: torchrun`: from its file to processes and their output."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from regroup.local.display import Display, without_escapes
from regroup.local.faults import Fault, never_injected
from regroup.local.interruption import play
from regroup.local.local_desired import ranks_per_worker
from regroup.local.summary import write
from regroup.local.torchrun_run import TorchrunRun, Wanted
from regroup_operator.api.spec import TrainingJobSpec
from regroup_operator.api.user_script import COMMAND_FIELD, user_script
from regroup_trainer.protocol.job_status import Outcome


def torchrun_wanted(
    spec: TrainingJobSpec, job: str, working_directory: Path, folder: Path, workers: int | None
) -> Wanted:
    """What the job asks for, run in `working_directory`; `workers` overrides `replicas`. Raises
    click.ClickException without a script.
    """
    script = user_script(spec.template)
    if script is None:
        raise click.ClickException(f"{COMMAND_FIELD}: is missing")
    replicas = workers or spec.replicas
    return Wanted(
        job=job,
        script=script,
        replicas=replicas,
        nnodes=f"{min(spec.min_replicas, replicas)}:{max(spec.max_replicas, replicas)}",
        ranks=ranks_per_worker(spec),
        max_restarts=spec.restart_policy.max_restarts,
        working_directory=working_directory,
        directory=folder,
        progress_pattern=spec.progress_pattern or "",
    )


def play_torchrun(
    wanted: Wanted, faults: Sequence[Fault], plain: bool, summary_file: Path | None
) -> int:
    """Run to the end and print how it ended. Returns the exit code."""
    _require_possible(faults, has_steps=bool(wanted.progress_pattern))
    run = TorchrunRun(wanted, faults)
    start = time.monotonic()
    with Display(Console(), plain) as display:
        run.on_line, run.on_note = display.line, display.note
        run.on_step = partial(display.show_step, " ".join(wanted.script.arguments[:1]))
        outcome = play(run, display.note, "stopping", wanted.directory)
    summary = _summarize(run, outcome, time.monotonic() - start)
    steps = f"step {run.step.step}, " if run.step else ""
    click.echo(
        f"{outcome.result}: {without_escapes(outcome.message)}; {steps}{run.restarts} "
        f"worker{'' if run.restarts == 1 else 's'} replaced, {summary['wallSeconds']:.1f} s"
    )
    if summary_file is not None:
        write(summary, summary_file)
    if missed := never_injected(run.pending_faults):
        click.echo(missed, err=True)
    return 0 if outcome.result == "completed" and not missed else 1


def _require_possible(faults: Sequence[Fault], has_steps: bool) -> None:
    for fault in faults:
        if fault.unit == "step" and not has_steps:
            raise click.ClickException(
                f"--kill {fault}: torchrun does not report steps: set spec.progressPattern, or use "
                "@seconds= or @line="
            )
        if fault.kind == "coordinator":
            raise click.ClickException(
                f"--kill {fault}: torchrun has no coordinator: kill a worker or a rank"
            )


def _summarize(run: TorchrunRun, outcome: Outcome, wall_seconds: float) -> dict[str, Any]:
    """A JSON object; times in seconds. Step and loss are the last that `progressPattern` found."""
    return {
        "outcome": outcome.result,
        "message": outcome.message,
        "steps": run.step.step if run.step else None,
        "finalLoss": _finite(run.step.loss) if run.step else None,
        "restarts": run.restarts,
        "attempts": run.attempt,
        "wallSeconds": wall_seconds,
    }


def _finite(value: float | None) -> float | None:
    """JSON has neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None
