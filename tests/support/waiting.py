"""Waiting for a condition with a deadline: the tests' only way to let time pass."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LONGEST_PAUSE = 0.4
"""Seconds; longer ones could miss what happens soon after."""


def wait_until(
    what: str, condition: Callable[[], T | None], seconds: float = 30.0, every: float = 0.05
) -> T:
    """Call `condition` until it returns something true, and return that.

    What takes long to look at is looked at less often: a kubectl without pause takes half a core
    from what is waited for. Raises AssertionError, naming `what` and the last value, when `seconds`
    are over first.
    """
    deadline = time.monotonic() + seconds
    while True:
        start = time.monotonic()
        value = condition()
        if value:
            return value
        end = time.monotonic()
        if end > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}; last value: {value!r}")
        time.sleep(max(every, min(_LONGEST_PAUSE, 4 * (end - start))))


async def until(
    what: str, condition: Callable[[], object], seconds: float = 60.0, every: float = 0.005
) -> None:
    """`wait_until` for what the tasks of this event loop bring about. They stand still while
    `condition` is looked at: what waits for another process belongs into a thread, with
    `wait_until`.
    """
    deadline = time.monotonic() + seconds
    while True:
        start = time.monotonic()
        if condition():
            return
        end = time.monotonic()
        if end > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(max(every, min(_LONGEST_PAUSE, 4 * (end - start))))
