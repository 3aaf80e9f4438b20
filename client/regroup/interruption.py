"""Ctrl-C and SIGTERM ask a local run for an orderly end, whatever runs it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Protocol, TypeVar

Ending_co = TypeVar("Ending_co", covariant=True)


class Run(Protocol[Ending_co]):
    """A run that can be asked to end."""

    async def run(self) -> Ending_co:
        """Play it to its end."""

    def suspend(self) -> None:
        """Ask for an orderly end."""


async def until_the_end(run: Run[Ending_co], note: Callable[[str], None], word: str) -> Ending_co:
    """Play `run`; a signal suspends it, and `word` is noted."""

    def suspend() -> None:
        note(word)
        run.suspend()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, suspend)
    return await run.run()
