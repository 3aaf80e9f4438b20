"""The built-in trainer's loop over the steps of one generation: until all are done, or it is told to end."""

from __future__ import annotations

from regroup_trainer.contract import Decision
from regroup_trainer.engine import Ending, Engine
from regroup_trainer.evaluate import evaluate
from regroup_trainer.loader import Loader
from regroup_trainer.optimizer import learning_rate, set_learning_rate
from regroup_trainer.step import Stepper


class Loop:
    """Trains to the last step, or to the decision that ends the generation."""

    def __init__(self, engine: Engine, loader: Loader, stepper: Stepper) -> None:
        self._engine = engine
        self._loader = loader
        self._stepper = stepper
        self._state = stepper.state
        self._config = stepper.config
        self._world = stepper.world

    def run(self) -> Ending:
        """Raises c10d's errors when a peer is lost."""
        while self._state.position.step < self._config.training.steps:
            decision = self._step()
            self._evaluate_if_due()
            if self._state.position.step < self._config.training.steps:
                ending = self._engine.act(decision)
                if ending:
                    return ending
        return self._engine.save_result()

    def _step(self) -> Decision:
        """Train one step; returns the decision that all ranks learned by it."""
        with self._engine.clock.phase("data_wait"):
            batch = self._loader.training(self._state.position.samples)
        rate = learning_rate(self._state.position.step + 1, self._config.training.steps, self._config.optimizer)
        with self._engine.clock.phase("step"):
            set_learning_rate(self._state.optimizer, rate)
            result = self._stepper.run(batch, self._engine.decide())
        self._engine.committed(result, rate)
        return result.commit.decision

    def _evaluate_if_due(self) -> None:
        step, every = self._state.position.step, self._config.evaluation.every_steps
        if not every or step % every:
            return
        with self._engine.clock.phase("evaluation"):
            batches = self._loader.held_out(self._config.evaluation.samples)
            found = evaluate(self._state, batches, self._config, self._world, self._engine.evaluating)
        self._engine.evaluated(found.loss, found.accuracy)
