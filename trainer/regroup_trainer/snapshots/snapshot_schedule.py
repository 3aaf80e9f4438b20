"""When to take a memory snapshot. Torch-free."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

DEFAULT_STEPS = 10
DEFAULT_SECONDS = 2.0
"""Least time between snapshots where no number of steps is asked for. More often would slow down
short steps.
"""
LEAST_SECONDS = 0.1
"""Least time between snapshots in any case. Where steps take milliseconds, the detection of a loss
costs more steps than this.
"""


class SnapshotTimer:
    """Rank 0's schedule; the commit brings its decision to the other ranks.

    `wanted` is the policy's `memory_snapshot_steps`; `step` is the one that the generation started
    with.
    """

    def __init__(
        self, wanted: int | None, step: int, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps = DEFAULT_STEPS if wanted is None else wanted
        self._seconds = DEFAULT_SECONDS if wanted is None else LEAST_SECONDS
        self._now = now
        self._last, self._last_at = step, -math.inf

    def due(self, step: int) -> bool:
        """Whether to copy the state after this step."""
        return (
            step // self._steps > self._last // self._steps
            and self._now() - self._last_at >= self._seconds
        )

    def restart(self, step: int) -> None:
        """Note that a snapshot of this step was begun."""
        self._last, self._last_at = step, self._now()
