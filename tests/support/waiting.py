"""Waiting for a condition with a deadline: the tests' only way to let time pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(what: str, condition: Callable[[], T | None], seconds: float = 30.0, every: float = 0.05) -> T:
    """Call `condition` until it returns something true, and return that.

    Raises AssertionError, naming `what` and the last value, when `seconds` are over first.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}; last value: {value!r}")
        time.sleep(every)
