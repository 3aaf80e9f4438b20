"""A user's model, optimizer and other objects, as a program that generations can train."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from regroup_trainer.checkpoint.layout import DataIdentity, RunIdentity
from regroup_trainer.data.data_set_fingerprint import VARY, DataSetFingerprint, agree
from regroup_trainer.errors import ConfigurationError, DataError
from regroup_trainer.parallel import user_model
from regroup_trainer.parallel.process_group import GenerationGroup
from regroup_trainer.parallel.user_model import Replicated
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.recovery.volume_access import VolumeAccess
from regroup_trainer.step.agreement import all_gather
from regroup_trainer.step.measuring import Samples, measure_all
from regroup_trainer.step.state import Position, Stateful, TrainState
from regroup_trainer.step.updater import StepResult
from regroup_trainer.system.log_lines import rank_log

_THEY_VARY = (
    "session.batches: dataset: the samples of %s are not the same in each process (random "
    "augmentation, a shuffle without a seed, or files that differ?): checkpoints remember its type "
    "and size alone"
)
Measure = Callable[[Any], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Attached:
    """What `Session.attach` was given."""

    optimizer: Optimizer
    scheduler: LRScheduler | None
    gradient_clip: float
    extra: dict[str, Stateful]


@dataclass
class DataSet:
    """What the ranks of a custom loop know of their dataset."""

    fingerprint: DataSetFingerprint
    _is_named: bool = False
    """Whether the user has been warned that its samples vary."""

    def agree(self, group: GenerationGroup, worker: str) -> None:
        """Learn what the other ranks have read. All ranks call it.

        Raises ConfigurationError on all of them when type or size differ; DataError on a new rank
        whose samples are not those of the ranks that have trained.
        """
        found = all_gather((worker, self.fingerprint))
        agreed = agree(found)
        if agreed is None:
            kinds = {one.kind: rank for rank, (_, one) in enumerate(found)}
            shown = ", ".join(f"{kind} on rank {rank}" for kind, rank in kinds.items())
            raise ConfigurationError(f"session.batches: dataset: {shown}: give all ranks the same")
        if agreed.is_proven and self.fingerprint.samples not in ("", agreed.samples):
            raise DataError(
                f"session.batches: dataset: {self.fingerprint} on this rank, {agreed} on those "
                "that have trained: give all ranks the same data"
            )
        self._learn(agreed, is_shown=group.is_rank0)

    def continue_from(self, then: str) -> None:
        """Learn what the process that made a fitting checkpoint had read."""
        known = DataSetFingerprint.parse(then).continued_by(self.fingerprint)
        self._learn(known or self.fingerprint, is_shown=dist.get_rank() == 0)

    def _learn(self, known: DataSetFingerprint, *, is_shown: bool) -> None:
        if is_shown and known.samples == VARY and not self._is_named:
            rank_log.warning(_THEY_VARY, known.kind)
            self._is_named = True
        self.fingerprint = known


@dataclass(frozen=True)
class CustomProgram:
    """A `Program` that consists of a user's objects."""

    config: TrainConfig
    model: nn.Module
    attached: Attached
    samples: int
    """In the dataset."""
    data: DataSet
    """What is known of the dataset."""

    can_rewind = False
    """The user's code has run on: only a new process can begin at an older step."""
    targets_per_sample = 1
    flops_per_token = 0.0

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
            fingerprint=str(self.data.fingerprint),
            samples=self.samples,
            seed=training.seed,
            global_batch_size=training.global_batch_size,
            sequence_length=1,
        )
        model, strategy = user_model.identity(self.model), self.config.parallelism.strategy
        return RunIdentity(model, strategy, order, is_custom=True)

    def agree_on_data(self, group: GenerationGroup, worker: str) -> None:
        """Compare what all ranks have read."""
        self.data.agree(group, worker)

    def continue_data(self, fingerprint: str) -> None:
        """Compare with what an earlier process has read."""
        self.data.continue_from(fingerprint)

    def choose_attention(self, device: torch.device) -> str:  # noqa: ARG002 - the user's matter
        """Nothing is chosen for a user's model."""
        return ""

    def build(self, group: GenerationGroup) -> TrainState:
        """The user's objects as they are, with rank 0's values of the model on all ranks."""
        return self._state(group, Position(), init_sync=True)

    def begin_run(self, state: TrainState, volume: VolumeAccess) -> None:
        """The user's code has done it."""

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
