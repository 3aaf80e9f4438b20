"""The steps that a rank remembers, so that the history on the volume stays complete.

Rank 0 writes the history. When it is lost, lines that its machine had not flushed are lost too, and
a volume that is away takes none. So every rank keeps the newest steps in memory, and rank 0 of the
next generation writes what is missing. They also travel with memory snapshots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from pydantic import ValidationError

from regroup_trainer.checkpoint.history import CommittedStep
from regroup_trainer.checkpoint.layout import DataIdentity
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.step.updater import StepResult

LOGGED_STEPS = 2000
"""The most steps that are kept."""


def committed_step(
    generation: GenerationNumber, world_size: int, result: StepResult, data: DataIdentity
) -> CommittedStep:
    """A step that a generation made, as the history on the volume has it."""
    first = result.position.samples - data.global_batch_size
    return CommittedStep(
        generation=generation,
        step=result.position.step,
        world=world_size,
        epoch=first // data.samples,
        first=first,
        count=data.global_batch_size,
        hash=result.commit.digest,
        loss=result.commit.loss,
    )


def lines_after(step: int, log: StepLog) -> bytes:
    """The logged steps after this one, one JSON line each."""
    return b"".join(
        line.model_dump_json().encode() + b"\n" for line in log.steps if line.step > step
    )


def read_lines(content: bytes) -> StepLog:
    """The steps that `lines_after` wrote; none where another release wrote other lines."""
    try:
        lines = content.splitlines()[-LOGGED_STEPS:]
        return StepLog(CommittedStep.model_validate_json(line) for line in lines)
    except ValidationError:
        return StepLog()


class StepLog:
    """The newest committed steps on the line that leads to this rank's state, oldest first."""

    def __init__(self, steps: Iterable[CommittedStep] = ()) -> None:
        self._steps = deque(steps, maxlen=LOGGED_STEPS)

    @property
    def steps(self) -> tuple[CommittedStep, ...]:
        """All that are kept."""
        return tuple(self._steps)

    def append(self, step: CommittedStep) -> None:
        """Add the newest step; the oldest one goes when there are too many."""
        self._steps.append(step)
