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
_WAITING_SHARE = 0.1
"""At most this part of the time training waits for saves that are tried again."""
_WRITING_SHARE = 0.2
"""At most this part of the time such saves last: the volume may refuse one rank, and take a whole
state from the others each time.
"""


class SaveTimer:
    """When a save was last begun, and when one that failed is to be tried again. It goes on with
    the state when a generation ends. Rank 0's counts; the commit brings its decision to the others.

    The other ranks learn late, or never, how a save ended. One of them may be the next rank 0.
    """

    def __init__(
        self, last: float | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`last` is the time of the last save by the clock `now`, if there was one before."""
        self._now = now
        self._failures = 0
        self._retry_at = math.inf
        self._is_open = False
        """Whether this rank does not know how the last save ended."""
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
        self.last, self._retry_at, self._is_open = self._now(), math.inf, True

    def note_success(self) -> None:
        """Note that the save is on the volume."""
        self._failures, self._retry_at, self._is_open = 0, math.inf, False

    def note_failure(self, blocking: float) -> None:
        """Note that the save failed, for which training waited `blocking` seconds."""
        lasted = self._now() - self.last if self._failures else 0.0  # the first may have hung
        self._retry(max(blocking / _WAITING_SHARE, lasted / _WRITING_SHARE))

    def resume(self) -> None:
        """Note that another generation goes on: a save that is not known to be on the volume is
        tried again.
        """
        if self._is_open:
            self.note_missed()

    def note_missed(self) -> None:
        """Note that a save was due of which the volume has nothing."""
        self._retry(0.0)

    def _retry(self, least_pause: float) -> None:
        self._failures, self._is_open = self._failures + 1, False
        pause = retry_seconds(self._failures, _RETRY_SECONDS, _LONGEST_RETRY_SECONDS)
        self._retry_at = self._now() + max(pause, least_pause)


def due_by_steps(policy: CheckpointPolicy, step: int) -> bool:
    """Whether `intervalSteps` asks for a checkpoint of this step."""
    return policy.interval_steps is not None and step % policy.interval_steps == 0


def missed_by_steps(policy: CheckpointPolicy, saved_step: int, step: int) -> bool:
    """Whether `intervalSteps` asked for a checkpoint after that of `saved_step`, up to `step`."""
    interval = policy.interval_steps
    return interval is not None and step // interval > saved_step // interval
