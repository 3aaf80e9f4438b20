"""Prints what is done and how long it took, one line per step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str], None]


def to_stderr() -> Report:
    """A `Report` that writes to standard error, with the seconds since this call."""
    origin = time.monotonic()

    def write(message: str) -> None:
        sys.stderr.write(f"[{time.monotonic() - origin:6.1f}s] {message}\n")
        sys.stderr.flush()

    return write


def silent(message: str) -> None:
    """A `Report` that does nothing."""
    del message


@contextmanager
def step(report: Report, what: str) -> Iterator[None]:
    """Report `what` when the block has ended, with its duration in seconds."""
    began = time.monotonic()
    yield
    report(f"{what} ({time.monotonic() - began:.1f}s)")
