"""When to save. Torch-free."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.system.backoff import retry_seconds

_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 5.0, 60.0
"""After a save that failed, and after many in a row. An interval may be hours: a volume that takes
files again shall not wait so long for one.
"""
_RETRY_SHARE = 0.1
"""At most this part of the time training waits for saves that are tried again."""


class SaveTimer:
    """When a save was last begun, and when one that failed is to be tried again. It goes on with
    the state when a generation ends. Rank 0's counts; the commit brings its decision to the others.
    """

    def __init__(
        self, last: float | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`last` is the time of the last save by the clock `now`, if there was one before."""
        self._now = now
        self._failures = 0
        self._retry_at = math.inf
        self.last = now() if last is None else last

    def due(self, policy: CheckpointPolicy) -> bool:
        """Whether `intervalSeconds` has passed since the last save, or one that failed is to be
        tried again.
        """
        now = self._now()
        return now >= self._retry_at or (
            policy.seconds is not None and now - self.last >= policy.seconds
        )

    def restart(self) -> None:
        """Note that a save was begun."""
        self.last, self._retry_at = self._now(), math.inf

    def note_success(self) -> None:
        """Note that the save is on the volume."""
        self._failures, self._retry_at = 0, math.inf

    def note_failure(self, blocking: float) -> None:
        """Note that the save failed, for which training waited `blocking` seconds."""
        self._failures += 1
        pause = retry_seconds(self._failures, _RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        self._retry_at = self._now() + max(pause, blocking / _RETRY_SHARE)


def due_by_steps(policy: CheckpointPolicy, step: int) -> bool:
    """Whether `intervalSteps` asks for a checkpoint of this step."""
    return policy.interval_steps is not None and step % policy.interval_steps == 0
