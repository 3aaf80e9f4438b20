"""The training loop of one generation: step, record, report, evaluate, save, until done or told to end."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from regroup_trainer.channel import Channel
from regroup_trainer.checkpoint.checkpointer import Checkpointer
from regroup_trainer.checkpoint.layout import DataIdentity, Layout
from regroup_trainer.checkpoint.save import Saver
from regroup_trainer.clock import PhaseClock
from regroup_trainer.config import TrainConfig
from regroup_trainer.contract import Decision, Evaluated, GenerationRecord
from regroup_trainer.evaluate import evaluate
from regroup_trainer.history import CommittedStep, History
from regroup_trainer.loader import Loader
from regroup_trainer.optimizer import learning_rate, set_learning_rate
from regroup_trainer.reporting import ProgressReporter
from regroup_trainer.state import TrainState
from regroup_trainer.step import Stepper, StepResult
from regroup_trainer.world import World

Ending = Literal["completed", "leave", "stop"]


@dataclass(frozen=True)
class Setting:
    """What a generation's loop works with."""

    record: GenerationRecord
    world: World
    loader: Loader
    data: DataIdentity
    layout: Layout
    saved_step: int | None
    """The step of the checkpoint that the state comes from."""

    @property
    def config(self) -> TrainConfig:
        """What is trained."""
        return self.record.desired.train


class Loop:
    """Trains `state` to the last step, or to the decision that ends the generation."""

    def __init__(self, setting: Setting, state: TrainState, channel: Channel) -> None:
        self._setting = setting
        self._state = state
        self._channel = channel
        self._world = setting.world
        self._config = setting.config
        self._policy = setting.record.desired.checkpoint
        self._generation = setting.record.number
        self._clock = PhaseClock()
        self._stepper = Stepper(state, self._config, self._world, setting.loader.data.targets_per_sample)
        self._reporter = ProgressReporter(self._generation, self._world.rank, setting.data.samples)
        self._history = History(setting.layout.history_file(self._generation)) if self._world.leads else None
        saver = Saver(setting.layout, self._generation, self._world, self._config, setting.data, self._settle)
        self._checkpointer = Checkpointer(saver, state, self._policy, channel, setting.saved_step)

    def run(self) -> Ending:
        """Raises c10d's errors when a peer is lost."""
        while self._state.position.step < self._config.training.steps:
            decision = self._step()
            self._evaluate_if_due()
            if self._state.position.step < self._config.training.steps:
                ending = self._act(decision)
                if ending:
                    return ending
        self._checkpointer.save_result()
        return "completed"

    def _step(self) -> Decision:
        """Train one step; returns the decision that all ranks learned by it."""
        with self._clock.phase("data_wait"):
            batch = self._setting.loader.training(self._state.position.samples)
        first = self._state.position.samples
        rate = learning_rate(self._state.position.step + 1, self._config.training.steps, self._config.optimizer)
        with self._clock.phase("step"):
            set_learning_rate(self._state.optimizer, rate)
            result = self._stepper.run(batch, self._decide())
        self._record(result, first)
        self._channel.send(self._reporter.report(result, rate, self._seconds()))
        self._checkpointer.after_step()
        return result.commit.decision

    def _seconds(self) -> dict[str, float]:
        return {**self._clock.seconds(), **self._checkpointer.seconds}

    def _decide(self) -> Decision:
        """Rank 0 speaks for the coordinator and for the clock; the others learn it from the commit."""
        if not self._world.leads:
            return Decision.CONTINUE
        told = [word.decision for word in self._channel.poll() if word.generation == self._generation]
        due = [Decision.SAVE] if self._checkpointer.due() else []
        return max([*told, *due], default=Decision.CONTINUE)

    def _act(self, decision: Decision) -> Ending | None:
        match decision:
            case Decision.LEAVE:
                self._checkpointer.save_durably()  # if it fails the next world resumes from an older one
                return "leave"
            case Decision.STOP:
                if self._policy.on_termination == "Save":
                    self._checkpointer.save_durably()
                return "stop"
            case Decision.SAVE:
                self._checkpointer.begin()
            case Decision.CONTINUE:
                pass
        return None

    def _record(self, result: StepResult, first: int) -> None:
        if not self._history:
            return
        if not result.updated:
            print(f"step {result.position.step}: gradients are not finite, the update was skipped", file=sys.stderr)
        self._history.append(
            CommittedStep(
                generation=self._generation,
                step=result.position.step,
                world=self._world.size,
                epoch=first // self._setting.data.samples,
                first=first,
                count=result.position.samples - first,
                hash=result.commit.digest,
                loss=result.commit.loss,
            )
        )

    def _settle(self) -> None:
        if self._history:
            self._history.sync()

    def _evaluate_if_due(self) -> None:
        step, every = self._state.position.step, self._config.evaluation.every_steps
        if not every or step % every:
            return
        with self._clock.phase("evaluation"):
            batches = self._setting.loader.held_out(self._config.evaluation.samples)
            loss = evaluate(self._state, batches, self._config, self._world)
        if self._world.leads:
            self._channel.send(Evaluated(generation=self._generation, rank=self._world.rank, step=step, loss=loss))
