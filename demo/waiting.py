"""Waits for a condition of the cluster, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from demo.errors import StoryError

T = TypeVar("T")


def wait_for(
    what: str,
    condition: Callable[[], T | None],
    seconds: float,
    *,
    every: float = 0.1,
    hint: Callable[[], str] = lambda: "",
) -> T:
    """Call `condition` until it returns something true, and return that.

    Raises StoryError after `seconds`. Its message contains `what` and `hint()`.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise StoryError(f"{what} did not happen within {seconds:.0f} s. {hint()}".strip())
        time.sleep(every)
    return found
