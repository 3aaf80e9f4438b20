"""What a rank reports of its steps, and how often.

Thousands of steps a second must not become as many messages. The agent knows each step all the
same: the channel writes it to a page of memory that outlives the rank.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch

from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import (
    CollectiveOp,
    MemoryKind,
    Progress,
    RankReport,
    VolumeProblem,
)
from regroup_trainer.rank.program import Program
from regroup_trainer.step.model_flops import peak_flops, utilization
from regroup_trainer.step.updater import StepResult

_RATE_STEPS = 10
"""The token rate is a mean over so many steps."""


class _Step(NamedTuple):
    """A committed step that was not reported yet."""

    result: StepResult
    rate: float
    time: float


class Measured(NamedTuple):
    """What a rank knows of its generation beside the steps."""

    seconds: dict[str, float]
    """So far, by phase of the ledger."""
    collective_seconds: dict[CollectiveOp, float]
    volume: VolumeProblem | None
    """What keeps the history from the volume."""


class Reporter:
    """Sends one rank's reports in order. Of steps in quick succession it reports only the newest.

    `measured` is called only for steps that are reported.
    """

    def __init__(
        self,
        channel: Channel,
        generation: GenerationNumber,
        rank: int,
        samples_per_epoch: int,
        measured: Callable[[], Measured],
        utilization: Callable[[float], float | None],
    ) -> None:
        """`utilization`: that of the GPUs, at a rate of tokens per second."""
        self._channel = channel
        self._generation = generation
        self._rank = rank
        self._samples_per_epoch = samples_per_epoch
        self._measured = measured
        self._utilization = utilization
        self._unreported: _Step | None = None
        self._computed: list[float] = []
        """Compute times of the steps since the last report, where they were measured."""
        self._recent: deque[tuple[float, int]] = deque(maxlen=_RATE_STEPS + 1)
        """(wall clock, tokens) of the newest commits."""

    def step(self, result: StepResult, rate: float) -> None:
        """Take note of a committed step that was made with learning rate `rate`."""
        now = time.time()
        self._recent.append((now, result.position.tokens))
        if result.compute_seconds:
            self._computed.append(result.compute_seconds)
        self._unreported = _Step(result, rate, now)
        if self._channel.committed(result.position.step, now):
            self.flush()

    def send(self, report: RankReport) -> None:
        """Send another report, after that of the newest step."""
        self.flush()
        self._channel.send(report)

    def flush(self) -> None:
        """Report the newest step, if it was not reported yet."""
        if self._unreported is not None:
            self._channel.send(self._progress(self._unreported))
            self._unreported = None
            self._computed.clear()

    def _progress(self, step: _Step) -> Progress:
        """The report; loss and rates come from rank 0 alone."""
        is_rank0, measured, position = self._rank == 0, self._measured(), step.result.position
        token_rate = self._tokens_per_second() if is_rank0 else 0.0
        return Progress(
            generation=self._generation,
            rank=self._rank,
            step=position.step,
            time=step.time,
            seconds=measured.seconds,
            collective_seconds=measured.collective_seconds,
            memory_bytes=_gpu_memory(),
            volume=measured.volume,
            epoch=position.samples / self._samples_per_epoch,
            tokens=position.tokens,
            compute_seconds=sum(self._computed) / max(1, len(self._computed)),
            skipped=step.result.skipped,
            loss=step.result.commit.loss if is_rank0 else None,
            gradient_norm=step.result.commit.gradient_norm if is_rank0 else None,
            learning_rate=step.rate if is_rank0 else 0.0,
            tokens_per_second=token_rate,
            counts_samples=is_rank0 and position.tokens == position.samples,
            mfu=self._utilization(token_rate) or 0.0 if is_rank0 else 0.0,
        )

    def _tokens_per_second(self) -> float:
        (start, tokens_then), (end, tokens_now) = self._recent[0], self._recent[-1]
        return (tokens_now - tokens_then) / (end - start) if end > start else 0.0


def utilization_of(program: Program, group: GenerationGroup) -> Callable[[float], float | None]:
    """The model FLOPs utilization of all GPUs at a rate of tokens per second; None where the peak
    or the operations are not known.
    """
    is_gpu = group.device.type == "cuda"
    name = torch.cuda.get_device_name(group.device) if is_gpu else ""
    peak = peak_flops(name, program.config.training.precision, os.environ)

    def of_rate(tokens_per_second: float) -> float | None:
        if peak is None:
            return None  # the operations are counted only where they are needed
        return utilization(tokens_per_second, program.flops_per_token, group.size, peak)

    return of_rate


def _gpu_memory() -> dict[MemoryKind, int]:
    """Of the device of this process: the most that PyTorch has used at once, and what was left."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return {}
    peak, free = torch.cuda.max_memory_allocated(), torch.cuda.mem_get_info()[0]
    return {"gpu": peak, "gpu_available": max(0, free + torch.cuda.memory_reserved() - peak)}
