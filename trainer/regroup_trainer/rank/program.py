"""What a rank trains, as `enter_generation` needs to know it."""

from __future__ import annotations

from typing import Protocol

import torch

from regroup_trainer.checkpoint.layout import RunIdentity
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.recovery.volume_access import VolumeAccess
from regroup_trainer.step.state import TrainState
from regroup_trainer.step.updater import StepResult


class Program(Protocol):
    """A configuration of the built-in trainer, or the objects of a user's own program."""

    @property
    def config(self) -> TrainConfig:
        """How it is trained."""

    @property
    def identity(self) -> RunIdentity:
        """What a checkpoint must have been written by to fit."""

    def agree_on_data(self, group: GenerationGroup, worker: str) -> None:
        """Compare the data of all ranks, which call it as they enter a generation. `worker` is the
        process that this one is a fork of. Raises ConfigurationError, DataError.
        """

    def continue_data(self, fingerprint: str) -> None:
        """The state comes from a checkpoint that fits, and was trained with this data."""

    @property
    def targets_per_sample(self) -> int:
        """Predictions that a sample asks for; each counts as a token."""

    @property
    def flops_per_token(self) -> float:
        """Operations of forward and backward for one token; 0 where nobody knows them."""

    @property
    def total_steps(self) -> int | None:
        """Steps in all, where the configuration does not say."""

    @property
    def retains_state(self) -> bool:
        """Whether the state is worth keeping when a generation ends."""

    @property
    def can_rewind(self) -> bool:
        """Whether a process that has trained can go back to an older state."""

    def choose_attention(self, device: torch.device) -> str:
        """Choose the attention kernel; returns its name, empty where there is none.

        Raises ConfigurationError.
        """

    def build(self, group: GenerationGroup) -> TrainState:
        """The state before the first step, equal on all ranks. Raises ConfigurationError."""

    def begin_run(self, state: TrainState, volume: VolumeAccess) -> None:
        """Give the state of a new run what the user names, however long its volume takes. All ranks
        call it, before the first step. Raises ConfigurationError, DataError, and as `volume` does.
        """

    def rebuild(self, group: GenerationGroup, resident: ResidentState | None) -> TrainState:
        """The resident state, wrapped for a new group; without one, a state that a peer will fill.

        The process group of the resident state is gone.
        """

    def after_update(self, result: StepResult) -> None:
        """Called after a step that was applied outside of the program's loop."""
