"""The CPU time of a computation, as far as the machine lets one see it.

Other processes share caches and cores with a test, and its own garbage collector runs when it
likes: a computation may take several times its time, but not each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_TRIES = 5


def least_cpu_seconds(compute: Callable[[], object], enough: float) -> float:
    """Return the least CPU seconds that `compute` and its threads took. It is tried again, up to
    five times, only while it has not taken less than `enough`.
    """
    least = float("inf")
    for _ in range(_TRIES):
        began = time.process_time()
        compute()
        least = min(least, time.process_time() - began)
        if least < enough:
            break
    return least
