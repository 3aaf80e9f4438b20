"""What a rank tells about its steps."""

from __future__ import annotations

import time
from collections import deque

from regroup_trainer.contract import GenerationNumber, Progress
from regroup_trainer.step import StepResult

_RATE_STEPS = 10
"""The token rate is a mean over so many steps."""


class ProgressReporter:
    """Makes the Progress of each committed step."""

    def __init__(self, generation: GenerationNumber, rank: int, samples_per_epoch: int) -> None:
        self._generation = generation
        self._rank = rank
        self._samples_per_epoch = samples_per_epoch
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RATE_STEPS + 1)
        """(monotonic seconds, tokens) of the newest commits."""

    def report(self, result: StepResult, rate: float, seconds: dict[str, float]) -> Progress:
        """Of rank 0 with loss and rates, of the others without; `rate` is the step's learning rate."""
        self._recent.append((time.monotonic(), result.position.tokens))
        bare = Progress(
            generation=self._generation,
            rank=self._rank,
            step=result.position.step,
            time=time.time(),
            seconds=seconds,
            epoch=result.position.samples / self._samples_per_epoch,
            tokens=result.position.tokens,
        )
        if self._rank != 0:
            return bare
        return bare.model_copy(
            update={
                "loss": result.commit.loss,
                "gradient_norm": result.commit.gradient_norm,
                "learning_rate": rate,
                "tokens_per_second": self._tokens_per_second(),
            }
        )

    def _tokens_per_second(self) -> float:
        (start, tokens_then), (end, tokens_now) = self._recent[0], self._recent[-1]
        return (tokens_now - tokens_then) / (end - start) if end > start else 0.0
