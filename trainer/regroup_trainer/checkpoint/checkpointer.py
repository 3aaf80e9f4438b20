"""All that a training loop has to do with saving: when, what is told about it, and what goes afterwards."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

import torch.distributed as dist
from torch.optim import Optimizer

from regroup_trainer.agreement import lead, until_all
from regroup_trainer.channel import Sender
from regroup_trainer.checkpoint.parts import Parts, Store
from regroup_trainer.checkpoint.plan import StatePlan
from regroup_trainer.checkpoint.save import Published, Save, Saver
from regroup_trainer.checkpoint.schedule import SaveTimer, due_by_steps
from regroup_trainer.checkpoint.snapshot import Snapshot
from regroup_trainer.clock import PhaseClock
from regroup_trainer.config import CheckpointPolicy
from regroup_trainer.contract import Busy, CheckpointFailed, CheckpointSaved
from regroup_trainer.errors import SaveError, Stage
from regroup_trainer.state import TrainState

_MOMENT_SECONDS = 0.02
_TELL_SECONDS = 1.0
"""Between signs that a save is waited for."""
_GRACE_SECONDS = 2.0
"""How long a save may take to end when its generation is over."""


class Checkpointer:
    """Saves `state` for one generation, beside its training; `finish` or `give_up` it at the end.

    All ranks call its methods after the same steps, but for `due`. At most one save is under way: the next one waits
    for it. The optimizer itself waits for the copy of the state before it changes it.
    """

    def __init__(
        self,
        saver: Saver,
        state: TrainState,
        policy: CheckpointPolicy,
        channel: Sender,
        saved_step: int | None,
        last_save: float | None = None,
    ) -> None:
        """`saved_step` is on the volume already; `last_save` is when (monotonic) this process last saved, if it did."""
        self._saver = saver
        self._state = state
        self._policy = policy
        self._channel = channel
        self._saved_step = saved_step
        self._clock = PhaseClock()
        self._timer = SaveTimer(policy, last_save)
        self._snapshot: Snapshot | None = None
        self._save: Save | None = None
        self._saves = 0
        self._begun_step: int | None = None
        self._succeeded = False
        self._blocking = 0.0
        self._told = 0.0
        self.seconds_within_steps = 0.0
        """The part of `seconds` that passed inside of optimizer steps."""
        self._parts = Parts(_own_connection(), saver.world.size)
        self._hook = state.optimizer.register_step_pre_hook(self._before_update)

    @property
    def seconds(self) -> dict[str, float]:
        """Time that training stood still for saves, by phase of the job's account."""
        return self._clock.seconds()

    @property
    def last_save(self) -> float:
        """When (monotonic) a save was last begun, or this one's clock was started."""
        return self._timer.last

    @property
    def saving(self) -> bool:
        """Whether this rank still has to do with a save."""
        return self._save is not None

    def due(self) -> bool:
        """Whether the policy asks for a checkpoint after the step that is about to run. Rank 0 asks; all are told.

        The clock does not ask for another one while a save is under way.
        """
        by_time = self._save is None and self._timer.due()
        return by_time or due_by_steps(self._policy, self._state.position.step + 1)

    def after_step(self) -> None:
        """Call after every step: prepares the first save, tells what became of the last."""
        self._plan_once()  # not before the first step: that should come soon, and makes the optimizer's state
        if self._save and self._save.done:
            self._collect()

    def begin(self) -> None:
        """Save the present step beside the following ones. A failure is told later and left to the next attempt."""
        self._finish()
        self._blocking = 0.0
        with self._standing_still():
            snapshot = self._fitting()
            self._saves += 1
            self._begun_step = self._state.position.step
            self._save = Save(self._saver, snapshot, self._parts, self._saves, self._state.position, self._policy)
        self._timer.restart()

    def plan(self) -> StatePlan:
        """What this rank stores of the state as it is now."""
        return self._fitting().plan

    def save_durably(self) -> bool:
        """Save the present step unless that is done; whether it is on the volume now. A failure is told."""
        step = self._state.position.step
        if self._saved_step == step:
            return True
        if self._begun_step != step or not self._save:
            self.begin()
        self._finish()
        return self._saved_step == step

    def finish(self) -> None:
        """Wait for the save under way; call it before the world is left."""
        self._hook.remove()
        self._finish()

    def give_up(self, state_lives_on: bool) -> None:
        """The generation broke: a save that all ranks have written is still published, else it is deleted.

        A state that lives on is waited for no longer than it takes to copy it.
        """
        self._hook.remove()
        if self._save:
            self._save.wait_for_copy()
            self._save.give_up(0.0 if state_lives_on else _GRACE_SECONDS)

    def _plan_once(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = Snapshot(StatePlan(self._state), self._saver.world.device)
        return self._snapshot

    def _fitting(self) -> Snapshot:
        if self._snapshot is not None and not self._snapshot.plan.fits():
            self._snapshot = None
        return self._plan_once()

    def _before_update(self, _optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if self._save is None:
            return
        with self._standing_still() as start:
            self._save.wait_for_copy()
        self.seconds_within_steps += time.monotonic() - start

    def _finish(self) -> None:
        """Wait until the last save that was begun has ended, and have all ranks know how."""
        if not self._saves:
            return
        self._told = time.monotonic()
        with self._standing_still():
            until_all(self._is_over)
        if lead(self._collect):
            self._saved_step = self._begun_step
        self._save = None

    def _is_over(self) -> bool:
        """Whether nothing is left to do for the save, after a moment. Raises what broke this rank's part of it."""
        save = self._save
        if save and save.done and not self._saver.world.leads:
            save.result()
        if save and time.monotonic() - self._told > _TELL_SECONDS:
            self._told = time.monotonic()
            self._channel.send(
                Busy(
                    generation=self._saver.generation,
                    rank=self._saver.world.rank,
                    doing="save",
                    step=save.position.step,
                )
            )
        return save is None or save.wait(_MOMENT_SECONDS)

    def _collect(self) -> bool:
        """Take note of how the save ended; on rank 0, whether the last one succeeded.

        Raises FencedError on rank 0, c10d's errors when the store is gone.
        """
        save, self._save = self._save, None
        if save:
            try:
                published = save.result()
            except SaveError as failure:
                self._succeeded = False
                self._tell_failure(save.position.step, failure.stage, failure.error)
            else:
                self._succeeded = True
                self._tell_saved(published)
        return self._succeeded

    def _tell_saved(self, published: Published | None) -> None:
        if published is None:  # rank 0 tells
            return
        step = published.manifest.step
        self._channel.send(
            CheckpointSaved(
                generation=self._saver.generation,
                rank=self._saver.world.rank,
                step=step,
                path=str(self._saver.layout.published(step)),
                size_bytes=published.manifest.size_bytes,
                seconds=published.seconds,
                blocking_seconds=self._blocking,
                time=time.time(),
            )
        )
        if published.prune_problem:
            self._tell_failure(step, "prune", published.prune_problem)

    @contextlib.contextmanager
    def _standing_still(self) -> Iterator[float]:
        """Count the time inside towards the save; gives its start."""
        start = time.monotonic()
        try:
            with self._clock.phase("checkpoint_save"):
                yield start
        finally:
            self._blocking += time.monotonic() - start

    def _tell_failure(self, step: int, stage: Stage, error: str) -> None:
        print(f"checkpoint of step {step} failed ({stage}): {error}", file=sys.stderr)
        report = CheckpointFailed(
            generation=self._saver.generation, rank=self._saver.world.rank, step=step, stage=stage, error=error
        )
        self._channel.send(report)


def _own_connection() -> Store:
    """To the store of the process group, for the writers' threads alone: a store serves one call at a time."""
    group = dist.group.WORLD
    assert group is not None, "the process group is made before"
    store: Store = group.get_group_store().clone()
    return store
