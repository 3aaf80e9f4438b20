"""Waits for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

from devcluster.errors import DeadlineError


def wait_until(condition: Callable[[], object], seconds: float, what: str, hint: str = "") -> None:
    """Return when `condition()` is true. Raises DeadlineError with `what` and `hint` after
    `seconds`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise DeadlineError(f"timed out after {seconds:.0f} s: {what}. {hint}".strip())
        time.sleep(0.05)
