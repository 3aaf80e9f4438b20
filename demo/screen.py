"""What the viewer sees: one line for each thing that happens, and below it, on a terminal, how the training goes."""

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
"""How often progress is told where there is no terminal."""


class Screen:
    """Tells events with the elapsed time; shows progress live on a terminal, as a line now and then elsewhere."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.started = time.monotonic()
        self._live: Live | None = None
        self._told = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.started

    def tell(self, sentence: str, style: str = "") -> None:
        """Something happened."""
        line = Text(f"{self.elapsed:6.1f} s  ", style="dim")
        self.console.print(line.append(Text(sentence, style=style or "not dim")), soft_wrap=True)

    def title(self, sentence: str) -> None:
        """A chapter begins."""
        self.tell(sentence, "bold cyan")

    @contextmanager
    def step(self, sentence: str) -> Iterator[None]:
        """Something that takes time; how long is told at its end."""
        self.tell(f"{sentence} ...")
        began = time.monotonic()
        yield
        self.tell(f"    done in {time.monotonic() - began:.1f} s", "dim")

    @contextmanager
    def live(self) -> Iterator[None]:
        """Progress stays at the bottom meanwhile."""
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=True) as self._live:
            yield
        self._live = None

    def progress(self, step: int, total: int, facts: dict[str, str]) -> None:
        """How the training goes now."""
        if self._live:
            self._live.update(bar(step, total, facts))
        elif time.monotonic() - self._told >= QUIET_SECONDS:
            self._told = time.monotonic()
            self.tell(
                f"    step {step} of {total}, " + ", ".join(f"{name} {value}" for name, value in facts.items()), "dim"
            )


def bar(step: int, total: int, facts: dict[str, str]) -> RenderableType:
    """A progress bar with facts below it."""
    grid = Table.grid(padding=(0, 3))
    grid.add_row(*(Text.assemble((f"{name} ", "dim"), (value, "bold")) for name, value in facts.items()))
    line = Table.grid(padding=(0, 2))
    line.add_row(ProgressBar(total=max(total, 1), completed=step, width=60), Text(f"step {step} of {total}"))
    return Group(Text(), line, grid)
