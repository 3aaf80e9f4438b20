"""Waiting for a condition with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from devcluster.errors import DeadlineError


def wait_until(condition: Callable[[], object], seconds: float, what: str, hint: str = "") -> None:
    """Return as soon as `condition()` is true; raise DeadlineError, naming `what`, after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise DeadlineError(f"{what} within {seconds:.0f} s did not come true. {hint}".strip())
        time.sleep(0.05)
