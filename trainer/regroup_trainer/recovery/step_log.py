"""The steps that a rank remembers, so that the history on the volume stays complete.

Rank 0 writes the history. When it is lost, lines that its machine had not flushed are lost too. So
every rank keeps the newest steps in memory, and rank 0 of the next generation writes what is
missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from regroup_trainer.checkpoint.history import CommittedStep
from regroup_trainer.checkpoint.layout import DataIdentity
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.step.updater import StepResult

LOGGED_STEPS = 2000
"""The most steps that are kept."""


class LoggedStep(NamedTuple):
    """A committed step, and the generation that made it."""

    generation: GenerationNumber
    world_size: int
    result: StepResult

    def history_line(self, data: DataIdentity) -> CommittedStep:
        """The step as the history on the volume has it."""
        first = self.result.position.samples - data.global_batch_size
        return CommittedStep(
            generation=self.generation,
            step=self.result.position.step,
            world=self.world_size,
            epoch=first // data.samples,
            first=first,
            count=data.global_batch_size,
            hash=self.result.commit.digest,
            loss=self.result.commit.loss,
        )


class StepLog:
    """The newest committed steps on the line that leads to this rank's state, oldest first."""

    def __init__(self, steps: Iterable[LoggedStep] = ()) -> None:
        self._steps = deque(steps, maxlen=LOGGED_STEPS)

    @property
    def steps(self) -> tuple[LoggedStep, ...]:
        """All that are kept."""
        return tuple(self._steps)

    def append(self, step: LoggedStep) -> None:
        """Add the newest step; the oldest one goes when there are too many."""
        self._steps.append(step)
