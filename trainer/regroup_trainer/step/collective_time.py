"""Measures how long a rank waits in collectives, in all since its generation began.

- `gradients`: from the end of the rank's own computation to the sums of all ranks' gradients. Who
  is early waits here for the slowest rank. Where ranks wait within the layers (FSDP2, model
  parallelism) there is no such end, and nothing is measured.
- `commit`: the small all-reduce that makes a step a step of all ranks.

Own computation is not measured in each step. One that is counts for those since the last.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from regroup_trainer.protocol.rank_messages import CollectiveOp
from regroup_trainer.step.compute_time import Mark, is_over, seconds_between


class _Wait(NamedTuple):
    op: CollectiveOp
    steps: int
    """Which it counts for."""
    begin: Mark
    end: Mark


class CollectiveTime:
    """The waits of one rank."""

    def __init__(self) -> None:
        self._steps = 0
        """That have ended."""
        self._measured: dict[CollectiveOp, int] = {}
        """The newest step that was measured."""
        self._waits: deque[_Wait] = deque()
        """Those that a GPU may not have come to yet."""
        self._seconds: dict[CollectiveOp, float] = {}

    def add(self, op: CollectiveOp, begin: Mark, end: Mark) -> None:
        """A wait of the present step."""
        step = self._steps + 1
        self._waits.append(_Wait(op, step - self._measured.get(op, 0), begin, end))
        self._measured[op] = step

    def end_step(self) -> None:
        """The present step has ended."""
        self._steps += 1

    def seconds(self) -> dict[CollectiveOp, float]:
        """Seconds by operation so far, without what a GPU has not come to."""
        while self._waits and is_over(self._waits[0].end):
            op, steps, begin, end = self._waits.popleft()
            waited = steps * max(0.0, seconds_between(begin, end))
            self._seconds[op] = self._seconds.get(op, 0.0) + waited
        return dict(self._seconds)
