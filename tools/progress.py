"""What the preparation tools tell the user: one line when a step begins, one with the elapsed time when it ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ToolError(Exception):
    """A sentence that says what is wrong and what to do; printed without a traceback."""


def say(sentence: str) -> None:
    """Print one line at once, also into a pipe."""
    print(sentence, flush=True)


@contextmanager
def step(title: str) -> Iterator[None]:
    """Announce `title`, and tell how long the step took once it is over; a failed step is left to its error."""
    say(f"==> {title}")
    start = time.monotonic()
    yield
    say(f"    done in {time.monotonic() - start:.1f} s")


def run_tool(main: Callable[[], int]) -> None:
    """Run `main` and end the process with its code; a ToolError becomes one sentence and exit code 1."""
    try:
        sys.exit(main())
    except ToolError as error:
        sys.exit(f"error: {error}")
