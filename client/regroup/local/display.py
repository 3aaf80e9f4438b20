"""Shows a local run: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from regroup_operator.api.status import TrainingJobStatus
from regroup_operator.api.timestamps import parse_time
from regroup_trainer.protocol.job_status import CoordinatorStatus
from regroup_trainer.protocol.ledger import FAILURES
from regroup_trainer.protocol.message import loss_text
from regroup_trainer.protocol.progress_pattern import Found
from regroup_trainer.protocol.rank_messages import Progress

PLAIN_SECONDS = 5.0
"""Pause between two lines of progress without a terminal. Changes are printed at once."""
_SECONDS_LEFT = re.compile(r"\b\d+(\.\d+)? s\b")
"""A message that counts down is no news each second."""
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, moving the cursor
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # OSC and its like: titles, the clipboard
    r"|\x1b.?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
PHASE_STYLES = {
    "running": "green",
    "completed": "bold green",
    "failed": "bold red",
    "recovering": "yellow",
}


def without_escapes(text: str) -> str:
    """A text of a rank without the escapes and control characters that control a terminal. Tabs and
    ends of lines stay.
    """
    return _ESCAPES.sub("", text)


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
        shown = Text(f"{self._elapsed():7.1f} s  * {text}", style="magenta")
        self._console.print(shown, soft_wrap=True)

    def line(self, text: str) -> None:
        """Print a line of a rank, without what would control the terminal. A rank may write
        hundreds of thousands: rich is slow for that.
        """
        text = without_escapes(text)
        if self._live is None:
            print(text, file=self._console.file, flush=True)
        else:
            self._console.print(Text(text), soft_wrap=True)

    def show(self, status: CoordinatorStatus) -> None:
        """Show the newest status."""
        step = status.progress.step if status.progress else 0
        view = View(status.phase, status.message, step, status.total_steps, _facts(status))
        message = _SECONDS_LEFT.sub("", status.message) if status.phase != "running" else ""
        self._show(view, (status.phase, status.generation, message))

    def show_job(self, status: TrainingJobStatus) -> None:
        """Show a job by the status that it has on a cluster."""
        view = view_of_job(status)
        news = "" if view.phase == "Running" else _SECONDS_LEFT.sub("", status.message)
        self._show(view, (view.phase, status.rendezvous_generation, news))

    def show_step(self, message: str, found: Found) -> None:
        """Show the newest step that a script under torchrun has written."""
        facts = [("step", _count(found.step, found.total))]
        if found.loss is not None:
            facts.append(("loss", loss_text(found.loss)))
        self._show(View("running", message, found.step, found.total, facts), message)

    def _show(self, view: View, news: object) -> None:
        """Show it; as a line only where there is news, or the last line is some seconds old."""
        if self._live is not None:
            self._live.update(view.panel())
        elif news != self._printed or time.monotonic() - self._printed_at >= PLAIN_SECONDS:
            self._printed, self._printed_at = news, time.monotonic()
            self._console.print(Text(f"{self._elapsed():7.1f} s  {view.line()}"), soft_wrap=True)

    def _elapsed(self) -> float:
        return time.monotonic() - self._start


@dataclass(frozen=True)
class View:
    """What is shown at one time."""

    phase: str
    message: str
    step: int
    total: int
    """0: unknown."""
    facts: list[tuple[str, str]]

    def line(self) -> str:
        """In one line, for logs and for what shows plain text alone."""
        facts = " ".join(f"{name}={value}" for name, value in self.facts)
        sentence = without_escapes(self.message.partition("\n")[0])  # a traceback follows the run
        said = self.phase if sentence == self.phase else f"{self.phase}: {sentence}"
        return f"{said} [{facts}]"

    def panel(self) -> Group:
        """With a bar, for a terminal."""
        bar, table = Table.grid(), Table.grid(padding=(0, 2))
        done = self.step if self.total else 0
        bar.add_row(ProgressBar(total=max(1, self.total), completed=done, width=60))
        for name, value in self.facts:
            table.add_row(Text(name, style="dim"), value)
        phase = Text(f"{self.phase}  ", style=PHASE_STYLES.get(self.phase.lower(), "cyan"))
        return Group(phase + Text(without_escapes(self.message)), bar, table)


def view_of_job(status: TrainingJobStatus) -> View:
    """A job by the status that it has on a cluster, whose progress may be 30 s old: so it says when
    the step was made.
    """
    progress = status.progress
    facts = [("step", _count(progress.step, progress.total_steps))]
    if made := _clock(progress.updated_time):
        facts.append(("at", made))
    if progress.loss is not None:
        facts.append(("loss", loss_text(progress.loss)))
    facts += [("workers", str(status.ready_replicas)), ("restarts", str(status.restart_count))]
    phase = status.phase or "Unknown"
    return View(phase, status.message, progress.step, progress.total_steps, facts)


def _clock(time: str | None) -> str:
    """The time of day here; empty where there is none."""
    try:
        return f"{parse_time(time).astimezone():%H:%M:%S}" if time else ""
    except OverflowError:  # the first hours of the year 1 may be before it here
        return ""


def _count(step: int, total: int) -> str:
    return f"{step}/{total}" if total else str(step)


def _facts(status: CoordinatorStatus) -> list[tuple[str, str]]:
    progress = status.progress
    counts_steps = progress is not None or status.total_steps > 0
    facts = [("ranks", str(status.world_size))]
    if counts_steps:
        step = progress.step if progress else 0
        facts.insert(0, ("step", _count(step, status.total_steps)))
    if progress is not None:
        facts += _numbers(progress)
    if status.checkpoint is not None:
        facts.append(("checkpoint", f"step {status.checkpoint.step}"))
    restarts = sum(status.ledger.restarts.get(cause, 0) for cause in FAILURES)
    if status.phase == "failed" and restarts:
        restarts -= 1  # nothing followed the last failure
    facts.append(("recoveries", str(restarts)))
    if counts_steps:
        facts.append(("goodput", f"{status.ledger.goodput_ratio:.0%}"))
    return facts


def _numbers(progress: Progress) -> list[tuple[str, str]]:
    """What is known of the newest step; a script reports no tokens, and maybe no loss."""
    facts = []
    if progress.loss is not None:
        facts.append(("loss", loss_text(progress.loss)))
    elif progress.has_loss:
        facts.append(("loss", "not finite"))
    if progress.steps_per_second:
        facts.append(("steps/s", f"{progress.steps_per_second:,.3g}"))
    if progress.tokens_per_second:
        unit = "samples/s" if progress.counts_samples else "tokens/s"
        facts.append((unit, f"{progress.tokens_per_second:,.0f}"))
    return facts
