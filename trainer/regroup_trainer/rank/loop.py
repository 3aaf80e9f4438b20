"""The built-in trainer's loop over the steps of one generation."""

from __future__ import annotations

from regroup_trainer.protocol.generation import Decision
from regroup_trainer.protocol.rank_messages import GenerationOutcome
from regroup_trainer.rank.loader import Loader
from regroup_trainer.rank.running_generation import RunningGeneration
from regroup_trainer.step.evaluate import evaluate
from regroup_trainer.step.optimizer import learning_rate, set_learning_rate


class Loop:
    """Trains to the last step, or to the decision that ends the generation."""

    def __init__(self, generation: RunningGeneration, loader: Loader) -> None:
        self._generation = generation
        self._loader = loader
        self._stepper = generation.stepper
        self._state = generation.state
        self._config = generation.stepper.config

    def run(self) -> GenerationOutcome:
        """Raises CommitError, NonFiniteError, DataError, GenerationOverError and c10d's errors when
        a peer is lost.
        """
        while self._state.position.step < self._config.training.steps:
            decision = self._step()
            self._evaluate_if_due()
            if self._state.position.step < self._config.training.steps:
                outcome = self._generation.act(decision)
                if outcome:
                    return outcome
        return self._generation.save_result()

    def _step(self) -> Decision:
        """Train one step; returns the decision that its commit brought."""
        clock, training = self._generation.clock, self._config.training
        with clock.phase("data_wait"):
            batch = self._loader.training(
                self._state.position.samples, self._generation.report_data_awaited
            )
        rate = learning_rate(self._state.position.step + 1, training.steps, self._config.optimizer)
        with clock.phase("step"):
            set_learning_rate(self._state.optimizer, rate)
            result = self._stepper.run(batch, self._generation.decide(), self._generation.ready)
        self._generation.record(result, rate)
        return result.commit.decision

    def _evaluate_if_due(self) -> None:
        step, every = self._state.position.step, self._config.evaluation.every_steps
        if not every or step % every:
            return
        generation = self._generation
        with generation.clock.phase("evaluation"):
            found = evaluate(
                self._state,
                self._loader.held_out(
                    self._config.evaluation.samples, self._generation.report_data_awaited
                ),
                self._config,
                generation.group,
                generation.report_evaluating,
            )
        generation.report_evaluation(found.loss, found.accuracy)
