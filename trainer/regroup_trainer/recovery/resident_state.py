"""The state that a rank process keeps in memory between two generations.

It holds nothing of the process group that was left. How far the other ranks came is not known here:
all ranks of the next generation compare their inventories and agree (`inventory`).
"""

from __future__ import annotations

from dataclasses import dataclass

from regroup_trainer.checkpoint.layout import DataIdentity
from regroup_trainer.checkpoint.save_schedule import SaveTimer
from regroup_trainer.protocol.config import TrainConfig
from regroup_trainer.protocol.generation import GenerationNumber
from regroup_trainer.protocol.rank_messages import Retained
from regroup_trainer.recovery.inventory import StateInventory
from regroup_trainer.recovery.step_log import StepLog, committed_step
from regroup_trainer.step.commit import Commit
from regroup_trainer.step.state import TrainState
from regroup_trainer.step.updater import StateUpdater, StepResult
from regroup_trainer.system.log_lines import rank_log


@dataclass
class ResidentState:
    """The state of a rank that waits for its next generation."""

    generation: GenerationNumber
    """The generation that the state belongs to."""
    world_size: int
    """Of that generation."""
    updater: StateUpdater
    """Holds the state; applies a prepared step."""
    log: StepLog
    shard: int
    """Which part of the whole state this is."""
    shards: int
    """The number of parts that make up the whole state."""
    timer: SaveTimer
    """Of saves."""
    unused: frozenset[GenerationNumber] = frozenset()
    """Generations that the rank entered since, in which no step was committed."""

    @property
    def state(self) -> TrainState:
        """The training state itself."""
        return self.updater.state

    @property
    def whole(self) -> bool:
        """Whether the state is that of a step; False where it was partly overwritten."""
        return self.updater.whole

    def retained(self) -> Retained:
        """What is reported to the coordinator about the state."""
        return Retained(
            step=self.state.position.step,
            prepared=self.updater.prepared,
            shard=self.shard,
            shards=self.shards,
        )

    def inventory(self, shard: int, config: TrainConfig) -> StateInventory:
        """What this rank can contribute to a generation in which it holds `shard` of a state that
        is trained by `config`.
        """
        if shard != self.shard or not self.fits(config):
            return StateInventory(shard)
        step, updater = self.state.position.step, self.updater
        return StateInventory(
            shard, self.generation, step, updater.prepared, updater.last, self.unused
        )

    def fits(self, config: TrainConfig) -> bool:
        """Whether `config` can continue the state without a checkpoint."""
        return _what_shapes_the_state(self.updater.config) == _what_shapes_the_state(config)

    def enter(self, generation: GenerationNumber) -> None:
        """Note that the rank enters a generation. It counts as unused until a state of its own
        replaces this one.
        """
        self.unused |= {generation}

    def complete(self, commit: Commit, data: DataIdentity) -> StepResult:
        """Apply the prepared step with the commit that another rank has seen."""
        result = self.updater.apply(commit)
        self.log.append(committed_step(self.generation, self.world_size, result, data))
        rank_log.info("completed step %d, whose commit a peer had seen", result.position.step)
        return result


def _what_shapes_the_state(config: TrainConfig) -> TrainConfig:
    training = config.training.model_copy(update={"steps": 0, "non_finite": "skip"})
    return config.model_copy(update={"training": training, "evaluation": None})
