"""What a rank tells about its steps, and how often: thousands of steps a second must not become as many messages.

The agent knows each step all the same, since the channel notes it where it survives the rank.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from regroup_trainer.channel import Channel
from regroup_trainer.contract import GenerationNumber, Progress, RankReport
from regroup_trainer.step import StepResult

_RATE_STEPS = 10
"""The token rate is a mean over so many steps."""


class _Step(NamedTuple):
    """A committed step that nobody has been told of yet."""

    result: StepResult
    rate: float
    time: float


class Reporter:
    """Sends one rank's reports in order; of a quick succession of steps only the newest, but always that one.

    `seconds` tells the time so far by phase; it is asked when a step is told, which most are not.
    """

    def __init__(
        self,
        channel: Channel,
        generation: GenerationNumber,
        rank: int,
        samples_per_epoch: int,
        seconds: Callable[[], dict[str, float]],
    ) -> None:
        self._channel = channel
        self._generation = generation
        self._rank = rank
        self._samples_per_epoch = samples_per_epoch
        self._seconds = seconds
        self._untold: _Step | None = None
        self._computed: list[float] = []
        """Own times of the steps since the last report, as far as they were measured."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RATE_STEPS + 1)
        """(wall clock, tokens) of the newest commits."""

    def step(self, result: StepResult, rate: float) -> None:
        """Note a committed step, made with learning rate `rate`."""
        now = time.time()
        self._recent.append((now, result.position.tokens))
        if result.compute_seconds:
            self._computed.append(result.compute_seconds)
        self._untold = _Step(result, rate, now)
        if self._channel.committed(result.position.step, now):
            self.flush()

    def send(self, report: RankReport) -> None:
        """Tell anything else, after the steps that came before it."""
        self.flush()
        self._channel.send(report)

    def flush(self) -> None:
        """Tell of the newest step unless that is done."""
        if self._untold is not None:
            self._channel.send(self._progress(self._untold))
            self._untold = None
            self._computed.clear()

    def _progress(self, step: _Step) -> Progress:
        """Of rank 0 with loss and rates, of the others without."""
        leads = self._rank == 0
        return Progress(
            generation=self._generation,
            rank=self._rank,
            step=step.result.position.step,
            time=step.time,
            seconds=self._seconds(),
            epoch=step.result.position.samples / self._samples_per_epoch,
            tokens=step.result.position.tokens,
            compute_seconds=sum(self._computed) / max(1, len(self._computed)),
            skipped=step.result.skipped,
            loss=step.result.commit.loss if leads else None,
            gradient_norm=step.result.commit.gradient_norm if leads else None,
            learning_rate=step.rate if leads else 0.0,
            tokens_per_second=self._tokens_per_second() if leads else 0.0,
        )

    def _tokens_per_second(self) -> float:
        (start, tokens_then), (end, tokens_now) = self._recent[0], self._recent[-1]
        return (tokens_now - tokens_then) / (end - start) if end > start else 0.0
