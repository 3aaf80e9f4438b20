"""All that a training loop has to do with saving: when, what is told about it, and what goes afterwards."""

from __future__ import annotations

import sys
import time
from itertools import chain, repeat

from regroup_trainer.channel import Sender
from regroup_trainer.checkpoint.save import Saver, prune
from regroup_trainer.checkpoint.schedule import SaveTimer, due_by_steps
from regroup_trainer.clock import PhaseClock
from regroup_trainer.config import CheckpointPolicy
from regroup_trainer.contract import CheckpointFailed, CheckpointSaved
from regroup_trainer.errors import SaveError, Stage
from regroup_trainer.state import TrainState

_RESULT_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between attempts to save the last step."""


class Checkpointer:
    """Saves `state` for one generation. All ranks call its methods after the same steps, but for `due`."""

    def __init__(
        self, saver: Saver, state: TrainState, policy: CheckpointPolicy, channel: Sender, saved_step: int | None
    ) -> None:
        self._saver = saver
        self._state = state
        self._policy = policy
        self._channel = channel
        self._saved_step = saved_step
        self._clock: PhaseClock = PhaseClock()
        self._timer = SaveTimer(policy)

    @property
    def seconds(self) -> dict[str, float]:
        """Time that training stood still for saves, by phase of the job's account."""
        return self._clock.seconds()

    def due(self) -> bool:
        """Whether the policy asks for a checkpoint after the step that is about to run. Rank 0 asks; all are told."""
        return self._timer.due() or due_by_steps(self._policy, self._state.position.step + 1)

    def begin(self) -> None:
        """Save the present step. A failure is told and left to the next attempt."""
        self.save_durably()

    def before_update(self) -> None:
        """Call right before the optimizer changes the state."""

    def after_step(self) -> None:
        """Call after every step: tells what became of a save."""

    def save_durably(self) -> bool:
        """Save the present step unless that is done; whether it is on the volume now. A failure is told."""
        if self._saved_step == self._state.position.step:
            return True
        start = time.monotonic()
        try:
            with self._clock.phase("checkpoint_save"):
                manifest = self._saver.save(self._state)
        except SaveError as failure:
            self._tell_failure(failure.stage, failure.error)
            return False
        finally:
            self._timer.restart()
        self._saved_step = manifest.step
        self._tell_saved(manifest.size_bytes, time.monotonic() - start)
        self._prune()
        return True

    def save_result(self) -> None:
        """Save the last step, however often it takes: the result is in memory only, and a full disk can be freed."""
        for pause in chain(_RESULT_PAUSES, repeat(_RESULT_PAUSES[-1])):
            if self.save_durably():
                return
            time.sleep(pause)  # all ranks know of the failure and wait alike

    def _tell_saved(self, size_bytes: int, seconds: float) -> None:
        if not self._saver.world.leads:
            return
        step = self._state.position.step
        self._channel.send(
            CheckpointSaved(
                generation=self._saver.generation,
                rank=self._saver.world.rank,
                step=step,
                path=str(self._saver.layout.published(step)),
                size_bytes=size_bytes,
                seconds=seconds,
                blocking_seconds=seconds,
                time=time.time(),
            )
        )

    def _prune(self) -> None:
        if not self._saver.world.leads:
            return
        try:
            prune(self._saver.layout, self._saver.generation, self._policy)
        except OSError as error:
            self._tell_failure("prune", str(error))

    def _tell_failure(self, stage: Stage, error: str) -> None:
        step = self._state.position.step
        if not self._saver.world.leads:
            return
        print(f"checkpoint of step {step} failed ({stage}): {error}", file=sys.stderr)
        report = CheckpointFailed(
            generation=self._saver.generation, rank=self._saver.world.rank, step=step, stage=stage, error=error
        )
        self._channel.send(report)
