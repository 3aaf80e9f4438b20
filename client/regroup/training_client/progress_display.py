"""Shows how a job goes on while it is waited for: on a terminal, or in the output of a notebook's
cell, which is updated in place.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from regroup.local.display import Display, View, view_of_job, without_escapes
from regroup_operator.api.status import TrainingJobStatus

Show = Callable[[TrainingJobStatus], object]
REFRESH_SECONDS = 0.5
"""Pause between two updates of a cell; a notebook keeps each of them for a while."""


@contextmanager
def progress_shown(progress: bool | None) -> Iterator[Show]:
    """Inside, the function shows a status. `progress`: whether it does; None: where somebody
    watches, on a terminal or in a notebook.
    """
    is_notebook = in_notebook()
    if not (progress if progress is not None else is_notebook or sys.stderr.isatty()):
        yield lambda _status: None
    elif is_notebook:
        cell = NotebookCell()
        try:
            yield cell.show
        finally:
            cell.close()
    else:
        with Display(Console(stderr=True), plain=False) as display:
            yield display.show_job


def in_notebook() -> bool:
    """Whether this program is a kernel of Jupyter. IPython on a terminal has no kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


class NotebookCell:
    """One output of the cell that runs. It needs no widgets: a saved notebook shows the end."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown: View | None = None
        self._newest: View | None = None
        self._shown_at = -REFRESH_SECONDS
        self._is_closed = False

    def show(self, status: TrainingJobStatus) -> None:
        """Show the newest status."""
        if self._is_closed:
            return  # what another thread has still passed on
        self._newest = view_of_job(status)
        if time.monotonic() - self._shown_at >= REFRESH_SECONDS:
            self._update()

    def close(self) -> None:
        """Show the last one."""
        self._update()
        self._is_closed = True

    def _update(self) -> None:
        view = self._newest
        if view is None or view == self._shown:
            return
        self._shown, self._shown_at = view, time.monotonic()
        content = {"text/plain": view.line(), "text/html": page_of(view)}
        if self._handle is None:
            import IPython.display

            shown: Any = IPython.display  # it has no types
            self._handle = shown.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def page_of(view: View) -> str:
    """A status as HTML. Names and messages are text, whoever wrote them."""
    sentence = html.escape(f"{view.phase}: {without_escapes(view.message)}")
    facts = html.escape(", ".join(f"{name} {value}" for name, value in view.facts))
    done = f' value="{min(view.step, view.total)}" max="{view.total}"' if view.total else ""
    bar = f'<progress aria-label="steps"{done} style="width: 30em"></progress>'
    return f"<div>{sentence}</div>{bar}<div>{facts}</div>"
