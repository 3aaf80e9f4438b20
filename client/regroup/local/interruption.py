"""Ctrl-C and SIGTERM suspend a local run, of either launcher."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol, TypeVar

from regroup_trainer.system.process_signals import ignore_signals

Outcome_co = TypeVar("Outcome_co", covariant=True)


class Run(Protocol[Outcome_co]):
    """A run that can be suspended."""

    async def run(self) -> Outcome_co:
        """Train to the end. Returns how it ended."""

    def suspend(self) -> None:
        """Have it save where it can, and stop."""


async def until_the_end(
    run: Run[Outcome_co], note: Callable[[str], None], message: str
) -> Outcome_co:
    """Run to the end. A signal suspends the run, and `note` is called with `message`.

    From the end on this process ignores both signals: only its last words are left.
    """

    def suspend() -> None:
        note(message)
        run.suspend()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, suspend)
    try:
        return await run.run()
    finally:
        ignore_signals(*numbers)
