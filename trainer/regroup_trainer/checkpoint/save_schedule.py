"""When to save. Torch-free."""

from __future__ import annotations

import time
from collections.abc import Callable

from regroup_trainer.protocol.config import CheckpointPolicy


class SaveTimer:
    """Rank 0's clock for `intervalSeconds`; the commit brings its decision to the other ranks."""

    def __init__(
        self,
        policy: CheckpointPolicy,
        last: float | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`last` is the time of the last save by the clock `now`, if there was one before."""
        self._interval = policy.seconds
        self._now = now
        self.last = now() if last is None else last

    def due(self) -> bool:
        """Whether the interval has passed since the last save."""
        return self._interval is not None and self._now() - self.last >= self._interval

    def restart(self) -> None:
        """Note that a save was begun."""
        self.last = self._now()


def due_by_steps(policy: CheckpointPolicy, step: int) -> bool:
    """Whether `intervalSteps` asks for a checkpoint of this step."""
    return policy.interval_steps is not None and step % policy.interval_steps == 0
