"""The steps of one generation, put together from the calls of a custom loop."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from regroup_trainer.data.shares import MicroBatchPart
from regroup_trainer.errors import ConfigurationError
from regroup_trainer.protocol.generation import Decision
from regroup_trainer.rank.custom_program import CustomProgram
from regroup_trainer.rank.running_generation import RunningGeneration
from regroup_trainer.step.proposal import Share
from regroup_trainer.step.updater import StepResult


class CustomLoop:
    """Accumulates what the user's loop computes, and commits once a step's last batch is done."""

    def __init__(self, program: CustomProgram, generation: RunningGeneration) -> None:
        self.program = program
        self.generation = generation
        self.result: StepResult | None = None
        """The newest step of this generation."""
        self.decision = Decision.CONTINUE
        """What the commit of that step decided."""
        self.aligned = not generation.in_place
        """Whether all ranks are at the same place of the program. Ranks that keep their state are
        ahead of new ones until the first step.
        """
        self._stepper = generation.stepper
        self._part: MicroBatchPart | None = None
        self._backward_done = False
        self._since = 0.0
        self._samples = 0
        self._items = 0
        self._loss_sum: float | Tensor = 0.0

    def begin(self, part: MicroBatchPart) -> None:
        """The user gets the batch of `part`."""
        self._part, self._backward_done = part, False
        self._samples += part.samples
        self._since = time.monotonic()
        self._stepper.compute_time.begin()

    def end(self) -> None:
        """The user asks for the next batch. Raises ConfigurationError when a step was forgotten."""
        self._count_time()
        if self._part is not None and self._part.last and self._items:
            raise ConfigurationError(
                "session.batches: the step is not done: call session.step() after each backward"
            )

    def backward(self, loss: Tensor, weight: int | None) -> None:
        """Add the gradients of `loss`, which is a mean over `weight` items. Raises
        ConfigurationError.
        """
        if self._backward_done:
            raise ConfigurationError(
                "session.backward: called twice for one batch: add up its losses and call it once"
            )
        self._backward_done = True
        samples = self._part.samples if self._part else 0
        items = weight if weight is not None and samples else samples
        expected = self._stepper.updater.expected_tokens
        factor = torch.full_like(loss, items / expected, requires_grad=False)
        self._stepper.compute_time.until_computed(loss)
        self._items += items
        # On a GPU the sum stays on the device, so that the host does not wait.
        mean = loss.detach().double() if loss.is_cuda else loss.item()
        self._loss_sum += mean * items
        if self._stepper.proposes_early:
            self._propose()
        loss.backward(factor)  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """Commit and update, if this was the last batch of the step."""
        if self._part is None or not self._part.last:
            return
        if self._stepper.proposal is None:
            self._propose()
        rate = float(self.generation.state.optimizer.param_groups[0]["lr"])
        self.result = result = self._stepper.commit()
        self.program.after_update(result)
        self.aligned = True
        self.decision = result.commit.decision
        self._samples, self._items, self._loss_sum = 0, 0, 0.0
        self._count_time()
        self.generation.record(result, rate)

    def _propose(self) -> None:
        if self._part is not None and self._part.last:
            share = Share(self._items, self._loss_sum, self._part.digest, self._load())
            self._stepper.propose(share, self.generation.decide(), self.generation.ready)

    def _load(self) -> float:
        training, ranks = self.program.config.training, self.generation.group.size
        return max(1.0, self._samples * ranks / training.global_batch_size)

    def _count_time(self) -> None:
        now = time.monotonic()
        self.generation.clock.add("step", now - self._since)
        self._since = now
