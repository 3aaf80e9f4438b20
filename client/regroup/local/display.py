"""Shows a local run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from regroup_trainer.protocol.job_status import CoordinatorStatus

PLAIN_SECONDS = 5.0
"""Pause between two lines of progress without a terminal. Changes are printed at once."""
PHASE_STYLES = {
    "running": "green",
    "completed": "bold green",
    "failed": "bold red",
    "recovering": "yellow",
}


class Display:
    """The display of one run. A context manager around it."""

    def __init__(self, console: Console, plain: bool) -> None:
        self._console = console
        self._live = (
            None
            if plain or not console.is_terminal
            else Live(console=console, refresh_per_second=8)
        )
        self._start = time.monotonic()
        self._printed: object = None
        self._printed_at = 0.0

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def note(self, text: str) -> None:
        """Print that something was done to the processes."""
        self._console.print(Text(f"{self._elapsed():7.1f} s  * {text}", style="magenta"))

    def line(self, text: str) -> None:
        """Print a line of a rank."""
        self._console.print(Text(text), soft_wrap=True)

    def show(self, status: CoordinatorStatus) -> None:
        """Show the newest status."""
        if self._live is not None:
            self._live.update(self._panel(status))
            return
        news = (
            status.phase,
            status.generation,
            status.message if status.phase != "running" else "",
        )
        if news != self._printed or time.monotonic() - self._printed_at >= PLAIN_SECONDS:
            self._printed, self._printed_at = news, time.monotonic()
            self._console.print(
                Text(f"{self._elapsed():7.1f} s  {plain_line(status)}"), soft_wrap=True
            )

    def _panel(self, status: CoordinatorStatus) -> Group:
        step, total = status.progress.step if status.progress else 0, status.total_steps
        bar, table = Table.grid(), Table.grid(padding=(0, 2))
        bar.add_row(ProgressBar(total=max(1, total), completed=step, width=60))
        for name, value in _facts(status):
            table.add_row(Text(name, style="dim"), value)
        phase = Text(f"{status.phase}  ", style=PHASE_STYLES.get(status.phase, "cyan"))
        return Group(
            phase + Text(status.message),
            bar,
            table,
        )

    def _elapsed(self) -> float:
        return time.monotonic() - self._start


def plain_line(status: CoordinatorStatus) -> str:
    """The status in one line, for logs."""
    facts = " ".join(f"{name}={value}" for name, value in _facts(status))
    sentence = status.message.partition("\n")[0]  # a traceback follows the run
    return f"{status.phase}: {sentence} [{facts}]"


def _facts(status: CoordinatorStatus) -> list[tuple[str, str]]:
    progress = status.progress
    counts_steps = progress is not None or status.total_steps > 0
    facts = [("ranks", str(status.world_size))]
    if counts_steps:
        facts.insert(0, ("step", f"{progress.step if progress else 0}/{status.total_steps}"))
    if progress is not None and progress.loss is not None:
        facts.append(("loss", f"{progress.loss:.4f}"))
    if progress is not None:
        facts.append(("tokens/s", f"{progress.tokens_per_second:,.0f}"))
    if status.checkpoint is not None:
        facts.append(("checkpoint", f"step {status.checkpoint.step}"))
    facts.append(("recoveries", str(sum(status.ledger.restarts.values()))))
    if counts_steps:
        facts.append(("goodput", f"{status.ledger.goodput_ratio:.0%}"))
    return facts
