"""A user's own model, optimizer and other objects, as a program that generations can train."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from regroup_trainer.checkpoint.layout import DataIdentity, RunIdentity
from regroup_trainer.parallel import user_model
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.parallel.user_model import Replicated
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.step.measuring import Samples, measure_all
from regroup_trainer.step.state import Position, Stateful, TrainState
from regroup_trainer.step.updater import StepResult

Measure = Callable[[Any], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Attached:
    """What `Session.attach` was given."""

    optimizer: Optimizer
    scheduler: LRScheduler | None
    gradient_clip: float
    extra: dict[str, Stateful]


@dataclass(frozen=True)
class CustomProgram:
    """A `Program` that consists of a user's objects."""

    config: TrainConfig
    model: nn.Module
    attached: Attached
    samples: int
    """In the dataset."""
    fingerprint: str
    """Of the dataset."""

    can_rewind = False
    """The user's code has run on: only a new process can begin at an older step."""
    targets_per_sample = 1

    @property
    def total_steps(self) -> int:
        """As the user's code gives them."""
        return self.config.training.steps

    @property
    def retains_state(self) -> bool:
        """Whether every rank holds the whole model."""
        return isinstance(self.model, Replicated)

    @property
    def identity(self) -> RunIdentity:
        """What is trained, as its checkpoints know it."""
        training = self.config.training
        order = DataIdentity(
            fingerprint=self.fingerprint,
            samples=self.samples,
            seed=training.seed,
            global_batch_size=training.global_batch_size,
            sequence_length=1,
        )
        model, strategy = user_model.identity(self.model), self.config.parallelism.strategy
        return RunIdentity(model, strategy, order, is_custom=True)

    def choose_attention(self, device: torch.device) -> str:  # noqa: ARG002 - the user's matter
        """Nothing is chosen for a user's model."""
        return ""

    def build(self, group: GenerationGroup) -> TrainState:
        """The user's objects as they are, with rank 0's values of the model on all ranks."""
        return self._state(group, Position(), init_sync=True)

    def rebuild(self, group: GenerationGroup, resident: ResidentState | None) -> TrainState:
        """The user's objects with a new wrapper around the model; a peer may fill them."""
        if resident is None:
            return self._state(group, Position(), init_sync=False)
        if isinstance(self.model, Replicated):
            resident.state.model = self.model.module  # let go of the old wrapper
        return self._state(group, resident.state.position, init_sync=False)

    def after_update(self, result: StepResult) -> None:
        """Advance the scheduler."""
        if result.updated and self.attached.scheduler is not None:
            self.attached.scheduler.step()

    def measure_together(
        self,
        group: GenerationGroup,
        dataset: Samples,
        measure: Measure,
        options: dict[str, Any],
        alive: Callable[[], None],
    ) -> dict[str, float]:
        """Means over a dataset, of which each rank measures a share."""
        return measure_all(_wrapped(self.model), dataset, measure, group, options, alive)

    def measure_alone(
        self,
        group: GenerationGroup,
        dataset: Samples,
        measure: Measure,
        options: dict[str, Any],
        alive: Callable[[], None],
    ) -> dict[str, float]:
        """Means over a dataset, all of which this rank measures: the other ranks may be at another
        place of the program.
        """
        assert isinstance(self.model, Replicated), "only a replicated state is continued in place"
        alone = replace(group, rank=0, size=1)
        with self.model.alone():
            return measure_all(self.model.module, dataset, measure, alone, options, alive)

    def _state(self, group: GenerationGroup, position: Position, *, init_sync: bool) -> TrainState:
        if isinstance(self.model, Replicated):
            self.model.unwrap()
            gc.collect()  # DDP refuses a module whose former wrapper still lives
            self.model.wrap(group, init_sync=init_sync)
        attached = self.attached
        return TrainState(_wrapped(self.model), attached.optimizer, position, attached.extra)


def _wrapped(model: nn.Module) -> nn.Module:
    return model.wrapped if isinstance(model, Replicated) else model
