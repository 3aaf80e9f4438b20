"""Tells the user what is being done and how long it took, one line a step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]


def to_stderr(started: float | None = None) -> Say:
    """A `Say` that writes lines with the seconds since `started` (monotonic; default: now) to standard error."""
    origin = time.monotonic() if started is None else started

    def say(message: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - origin:6.1f}s] {message}\n")
        sys.stderr.flush()

    return say


def silent(message: str) -> None:
    """A `Say` that says nothing."""
    del message


@contextmanager
def step(say: Say, what: str) -> Iterator[None]:
    """Say `what` when the block has ended, with the seconds that it took."""
    began = time.monotonic()
    yield
    say(f"{what} ({time.monotonic() - began:.1f}s)")
