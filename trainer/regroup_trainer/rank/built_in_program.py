"""The built-in trainer's model and optimizer, as a configuration describes them."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from regroup_trainer import models
from regroup_trainer.checkpoint.initialize_from import initialize_from
from regroup_trainer.checkpoint.layout import DataIdentity, RunIdentity
from regroup_trainer.data import Dataset
from regroup_trainer.parallel.attention_kernel import choose_attention
from regroup_trainer.parallel.mesh import forget_meshes
from regroup_trainer.parallel.parallelize import (
    parallelize,
    parallelize_again,
    parallelize_optimizer,
)
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.strategies import STRATEGIES, Strategy
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.recovery.transfer import transplant
from regroup_trainer.recovery.volume_access import VolumeAccess
from regroup_trainer.step.optimizer import build_optimizer
from regroup_trainer.step.state import Position, TrainState
from regroup_trainer.step.updater import StepResult


@dataclass(frozen=True)
class BuiltInProgram:
    """A `Program` that is described by a configuration and its data alone."""

    config: TrainConfig
    data: Dataset

    can_rewind = True
    """A checkpoint holds all there is."""
    total_steps = None

    @property
    def targets_per_sample(self) -> int:
        """Predictions that a sample asks for."""
        return self.data.targets_per_sample

    @cached_property
    def flops_per_token(self) -> float:
        """Those of the whole model, however it is cut over ranks."""
        model = models.build(self.config.model, self.data.classes)
        return model.flops_per_token(self.config.training.sequence_length)

    @property
    def retains_state(self) -> bool:
        """Whether other ranks hold the same state, or the rest of it."""
        return self._strategy.recoverable_in_place

    @cached_property
    def identity(self) -> RunIdentity:
        """What is trained, as its checkpoints know it."""
        config, data = self.config, self.data
        order = DataIdentity(
            fingerprint=data.fingerprint,
            samples=data.samples,
            seed=config.training.seed,
            global_batch_size=config.training.global_batch_size,
            sequence_length=config.training.sequence_length,
        )
        model = {"name": config.model.name, **config.model.size.model_dump()}
        return RunIdentity(model, config.parallelism.strategy, order)

    @property
    def _strategy(self) -> Strategy:
        return STRATEGIES[self.config.parallelism.strategy]

    def agree_on_data(self, group: GenerationGroup, worker: str) -> None:
        """The fingerprint is that of files: nothing to compare."""

    def continue_data(self, fingerprint: str) -> None:
        """It is known already."""

    def choose_attention(self, device: torch.device) -> str:
        """Let this process use the configured kernel; returns its name. Raises
        ConfigurationError.
        """
        return choose_attention(self.config, device)

    def build(self, group: GenerationGroup) -> TrainState:
        """The state before the first step, the same for every world size and strategy."""
        model = parallelize(models.build(self.config.model, self.data.classes), self.config, group)
        optimizer = build_optimizer(model, self.config.optimizer)
        return TrainState(model, parallelize_optimizer(optimizer, self.config), Position())

    def begin_run(self, state: TrainState, volume: VolumeAccess) -> None:
        """Load the weights that the configuration names, if it does."""
        model, given = self.config.model, self.config.model.initialize_from
        if given is None:
            return
        device = next(state.model.parameters()).device

        def act() -> None:  # in a thread, which begins with the first GPU
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                initialize_from(state.model, model, self.data.classes)

        volume.on_every_rank(act, Path(given))

    def rebuild(self, group: GenerationGroup, resident: ResidentState | None) -> TrainState:
        """The resident state for a new group. Parameters that lie on a mesh move to one of the new
        group; others stay where they are and get a new wrapper.
        """
        if resident is None or not resident.fits(self.config):
            return self.build(group)
        forget_meshes()  # completing a step has filled the caches again
        old = resident.state
        if self._strategy.shards_parameters or self.config.parallelism.is_model_parallel:
            return transplant(old, self.build(group))
        if isinstance(old.model, DistributedDataParallel):
            old.model = old.model.module
            gc.collect()  # DDP refuses a module whose former wrapper still lives
        model = parallelize_again(old.model, self.config, group)
        return TrainState(model, old.optimizer, old.position, old.extra)

    def after_update(self, result: StepResult) -> None:
        """The learning rate follows from the step: there is nothing to do."""
