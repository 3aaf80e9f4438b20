"""Summarizes a finished local run, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from regroup.local.local_run import LocalRun
from regroup_trainer.protocol.job_status import Outcome
from regroup_trainer.protocol.ledger import FAILURES
from regroup_trainer.protocol.message import loss_text


def summarize(run: LocalRun, outcome: Outcome, wall_seconds: float) -> dict[str, Any]:
    """A JSON object; times in seconds. `steps` and `goodput` are null where the program reports no
    steps.
    """
    status = run.status
    progress = status.progress if status else None
    counts_steps = progress is not None or not run.desired.script
    return {
        "outcome": outcome.result,
        "message": outcome.message,
        "steps": (progress.step if progress else 0) if counts_steps else None,
        "finalLoss": progress.loss if progress else None,
        "recoveries": [
            recovery.model_dump(mode="json") for _, recovery in sorted(run.recoveries.items())
        ],
        "lostSteps": status.ledger.lost_steps if status else 0,
        "goodput": (status.ledger.goodput_ratio if status else 0.0) if counts_steps else None,
        "ledger": status.ledger.model_dump(mode="json") if status else {},
        "checkpoint": status.checkpoint.path if status and status.checkpoint else None,
        "wallSeconds": wall_seconds,
    }


def write(summary: dict[str, Any], file: Path) -> None:
    """Write the summary as JSON, and create its folder. Raises click.ClickException, which names
    the file.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(summary, indent=2) + "\n")
    except OSError as error:
        raise click.ClickException(
            f"--summary {click.format_filename(file)}: {error.strerror}: the run ended as shown "
            "above; give a file that can be written the next time"
        ) from None


def sentence(summary: dict[str, Any]) -> str:
    """The summary in one line."""
    final = summary["finalLoss"]
    loss = "" if final is None else f", final loss {loss_text(final)}"
    lost, recoveries = summary["lostSteps"], _recoveries(summary["recoveries"])
    if summary["steps"] is None:
        return f"{summary['outcome']}: {recoveries}, {summary['wallSeconds']:.1f} s"
    return (
        f"{summary['outcome']}: {summary['steps']} steps{loss}, {recoveries}, "
        f"{lost} lost step{'' if lost == 1 else 's'}, goodput {summary['goodput']:.0%}, "
        f"{summary['wallSeconds']:.1f} s"
    )


def _recoveries(records: list[dict[str, Any]]) -> str:
    """How many failures it recovered from; planned changes of the workers are counted apart."""
    failures = sum(record["cause"] in FAILURES for record in records)
    planned = len(records) - failures
    text = f"{failures} recover{'y' if failures == 1 else 'ies'}"
    changes = f"{planned} planned change{'' if planned == 1 else 's'}"
    return f"{text}, {changes}" if planned else text
