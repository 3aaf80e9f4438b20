"""Applies commits to a training state. Needs no process group: a rank whose generation has ended
can still complete a step with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from regroup_trainer.errors import CommitError, GenerationOverError
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.step import commit
from regroup_trainer.step.commit import Commit
from regroup_trainer.step.finiteness import Finiteness
from regroup_trainer.step.gradients import local_gradients
from regroup_trainer.step.state import Position, TrainState


@dataclass(frozen=True)
class StepResult:
    """A committed step."""

    position: Position
    """The position after the step."""
    commit: Commit
    skipped: int = 0
    """Steps of this generation so far whose update was skipped."""
    compute_seconds: float = 0.0
    """This rank's own time as `compute_time` measures it; 0 where it is not measured."""

    @property
    def updated(self) -> bool:
        """False when loss or gradients were not finite, so that the update was skipped."""
        return self.commit.finite


class StateUpdater:
    """Updates a state by commits, and knows whether the state is that of a whole step."""

    def __init__(self, state: TrainState, config: TrainConfig, targets_per_sample: int) -> None:
        """`targets_per_sample`: predictions that a sample asks for; each counts as a token."""
        self.state = state
        self.config = config
        self.expected_tokens = config.training.global_batch_size * targets_per_sample
        """Tokens of a global batch; gradients are scaled by its inverse before they are summed."""
        self.last: Commit | None = None
        """The commit of the newest step that was applied here."""
        self.whole = True
        """Whether the state is that of a step. False while an update is applied or the state is
        overwritten, and after that was interrupted.
        """
        self.prepared = False
        """Whether the gradients of the next step are reduced and kept, so that only its commit is
        missing.
        """
        self._finiteness = Finiteness(config.training.non_finite)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters, as they are between two steps."""
        return list(self.state.model.parameters())

    @cached_property
    def guarded(self) -> bool:
        """Whether the device itself holds back an update without a whole commit.

        True on GPUs with the fused optimizers of PyTorch, whose arguments for mixed precision serve
        as the guard. The update is then queued before the host has read the commit.
        """
        fused = getattr(self.state.optimizer, "_step_supports_amp_scaling", False)
        return fused and all(parameter.is_cuda for parameter in self.parameters)

    def prepare(self) -> None:
        """Note that the gradients of the next step are reduced: from now on `apply` needs only the
        commit.
        """
        self.prepared = True

    def drop_gradients(self) -> None:
        """Note that the gradients of the prepared step are gone."""
        self.prepared = False

    def begin_overwrite(self) -> None:
        """Note that the state is about to be overwritten with that of another rank."""
        self.whole = False

    def apply(self, committed: Commit) -> StepResult:
        """Apply the prepared step. Its commit comes from the all-reduce or from another rank."""
        self.prepared, self.whole = False, False
        if committed.finite:
            factor = commit.gradient_factor(
                committed, self.expected_tokens, self.config.training.gradient_clip
            )
            if factor != 1.0:
                torch._foreach_mul_(local_gradients(self.parameters), factor)
            self.state.optimizer.step()
        return self._advance(committed)

    def apply_behind_guard(
        self, summed: Tensor, size: int, read: Callable[[], Commit]
    ) -> StepResult:
        """Queue the update on the device, then read the commit that lets it through or holds it
        back.

        `summed` is the commit vector on the device, of `size` ranks. Raises GenerationOverError
        when the commit did not arrive whole; the state is then unchanged and the step prepared.
        """
        optimizer = self.state.optimizer
        held_back, divisor = commit.guard(
            summed, size, self.expected_tokens, self.config.training.gradient_clip
        )
        self.whole = False
        optimizer.found_inf, optimizer.grad_scale = held_back, divisor  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.found_inf, optimizer.grad_scale  # type: ignore[attr-defined]
        try:
            committed = read()
        except CommitError as error:
            self.whole = True  # the guard updated nothing and left the gradients as they were
            # On the host, a collective that was aborted on a GPU looks like one that has ended.
            raise GenerationOverError(f"the commit did not arrive whole: {error}") from error
        self.prepared = False
        return self._advance(committed)

    def _advance(self, committed: Commit) -> StepResult:
        self.state.optimizer.zero_grad(set_to_none=True)
        before = self.state.position
        self._finiteness.note(before.step + 1, committed.finite)
        after = Position(
            step=before.step + 1,
            samples=before.samples + self.config.training.global_batch_size,
            tokens=before.tokens + committed.tokens,
        )
        self.state.position, self.last, self.whole = after, committed, True
        return StepResult(after, committed, self._finiteness.skipped)
