"""The output of the demo: one line for each event. On a terminal, a progress bar stays below the
lines.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

QUIET_SECONDS = 5.0
"""Seconds between two progress lines where there is no terminal."""


class Screen:
    """Prints events with the elapsed time, and the progress of the training.

    On a terminal, progress is a live bar. Elsewhere, it is a line every few seconds.
    """

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.started = time.monotonic()
        self._live: Live | None = None
        self._reported = 0.0

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def report(self, sentence: str, style: str = "") -> None:
        """Print an event."""
        line = Text(f"{self.elapsed:6.1f} s  ", style="dim")
        self.console.print(line.append(Text(sentence, style=style or "not dim")), soft_wrap=True)

    def title(self, sentence: str) -> None:
        """Print the title of a new part of the demo."""
        self.report(sentence, "bold cyan")

    @contextmanager
    def step(self, sentence: str) -> Iterator[None]:
        """Print `sentence`, and after the block how long it took.

        Several steps may run at the same time, in threads.
        """
        self.report(f"{sentence} ...")
        began = time.monotonic()
        yield
        self.report(f"    done after {time.monotonic() - began:.1f} s: {sentence}", "dim")

    @contextmanager
    def live(self) -> Iterator[None]:
        """Keep the progress bar at the bottom while the block runs."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=True) as self._live:
            yield
        self._live = None

    def progress(self, step: int, total: int, facts: dict[str, str]) -> None:
        """Show the current progress of the training."""
        if self._live:
            self._live.update(bar(step, total, facts))
        elif time.monotonic() - self._reported >= QUIET_SECONDS:
            self._reported = time.monotonic()
            self.report(
                f"    step {step} of {total}, "
                + ", ".join(f"{name} {value}" for name, value in facts.items()),
                "dim",
            )


def bar(step: int, total: int, facts: dict[str, str]) -> RenderableType:
    """A progress bar with facts below it."""
    grid = Table.grid(padding=(0, 3))
    grid.add_row(
        *(Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in facts.items())
    )
    line = Table.grid(padding=(0, 2))
    line.add_row(
        ProgressBar(total=max(total, 1), completed=step, width=60), Text(f"step {step} of {total}")
    )
    return Group(Text(), line, grid)
