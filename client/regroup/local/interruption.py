"""Ctrl-C and SIGTERM suspend a local run, of either launcher. A second one ends it at once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import click

from regroup.local.local_run import LocalRunError
from regroup.local.run_folder import explain
from regroup.local.run_lock import FolderError
from regroup_trainer.system.process_signals import ignore_signals

Outcome_co = TypeVar("Outcome_co", covariant=True)
AGAIN_SECONDS = 1.0
"""A signal so soon after the first one is the same one: a shell and `timeout` may both send it."""


class RunAbandonedError(Exception):
    """The user has ended a run before it had saved."""


class Run(Protocol[Outcome_co]):
    """A run that can be suspended."""

    async def run(self) -> Outcome_co:
        """Train to the end. Returns how it ended."""

    def suspend(self) -> None:
        """Have it save where it can, and stop."""


def play(
    run: Run[Outcome_co], note: Callable[[str], None], message: str, directory: Path
) -> Outcome_co:
    """`until_the_end`, in a loop of its own; `directory` is that of the run. Raises
    click.ClickException for what goes wrong on this machine.
    """
    try:
        return asyncio.run(until_the_end(run, note, message))
    except (LocalRunError, FolderError, RunAbandonedError) as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(explain(error, directory)) from None


async def until_the_end(
    run: Run[Outcome_co], note: Callable[[str], None], message: str
) -> Outcome_co:
    """Run to the end. A signal suspends the run, and `note` is called with `message`.

    From the end on this process ignores both signals: only its last words are left. A second
    signal ends the run where it stands, as the volume may not take the save for hours. Raises
    RunAbandonedError then.
    """
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(run.run())
    asked_at: float | None = None

    def suspend() -> None:
        nonlocal asked_at
        if asked_at is None:
            asked_at = loop.time()
            note(f"{message}; again: stop at once")
            run.suspend()
        elif loop.time() - asked_at >= AGAIN_SECONDS:
            running.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, suspend)
    try:
        return await running
    except asyncio.CancelledError:
        raise RunAbandonedError(
            "ended by a second signal, before all was saved: what is not on the volume is lost"
        ) from None
    finally:
        ignore_signals(*numbers)
