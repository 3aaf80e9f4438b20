"""When to take a memory snapshot. Torch-free."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

DEFAULT_STEPS = 10
DEFAULT_SECONDS = 2.0
"""Between snapshots, where nobody asks for a number of steps: more often, quick steps would feel them."""
LEAST_SECONDS = 0.1
"""Between snapshots: of steps that take no longer than milliseconds, more are lost by detecting a loss."""


class SnapshotTimer:
    """Rank 0's; its verdict reaches the others in the commit vector.

    `wanted` is the policy's `memory_snapshot_steps`, and `step` the one that the generation began with.
    """

    def __init__(self, wanted: int | None, step: int, now: Callable[[], float] = time.monotonic) -> None:
        self._steps = DEFAULT_STEPS if wanted is None else wanted
        self._seconds = DEFAULT_SECONDS if wanted is None else LEAST_SECONDS
        self._now = now
        self._last, self._last_at = step, -math.inf

    def due(self, step: int) -> bool:
        """Whether to copy the state after this step."""
        return step // self._steps > self._last // self._steps and self._now() - self._last_at >= self._seconds

    def restart(self, step: int) -> None:
        """After this step one was begun."""
        self._last, self._last_at = step, self._now()
