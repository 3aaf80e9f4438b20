"""Saving, as a training loop sees it: when, what is reported, and what is deleted afterwards."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch.distributed as dist
from torch.optim import Optimizer

from regroup_trainer.checkpoint.parts import SavedParts, Store
from regroup_trainer.checkpoint.save import Published, Save, Saver
from regroup_trainer.checkpoint.save_schedule import SaveTimer, due_by_steps
from regroup_trainer.checkpoint.staging import Snapshot
from regroup_trainer.checkpoint.state_plan import StatePlan
from regroup_trainer.errors import SaveError, Stage
from regroup_trainer.protocol.channel import Sender
from regroup_trainer.protocol.config import CheckpointPolicy
from regroup_trainer.protocol.message import TEXT_LIMIT
from regroup_trainer.protocol.rank_messages import (
    BUSY_SECONDS,
    Busy,
    CheckpointFailed,
    CheckpointSaved,
    VolumeProblem,
)
from regroup_trainer.step.agreement import broadcast_from_rank0, until_all
from regroup_trainer.step.phase_clock import PhaseClock
from regroup_trainer.step.state import TrainState
from regroup_trainer.system.log_lines import rank_log

_MOMENT_SECONDS = 0.02
_PATIENCE_SECONDS = 30.0
"""A save that takes longer holds up no training: the next one is left out until it has ended."""


class Checkpointer:
    """Saves `state` for one generation, beside its training; end it by `finish` or `give_up`.

    All ranks call its methods after the same steps, except `due`. At most one save runs at a time;
    the next one waits for it, or is postponed. The optimizer waits for the copy before it changes
    the state.
    """

    def __init__(
        self,
        saver: Saver,
        state: TrainState,
        policy: CheckpointPolicy,
        channel: Sender,
        saved_step: int | None,
        timer: SaveTimer | None = None,
    ) -> None:
        """`saved_step` is on the volume already. `timer` is that of the generation before, if the
        state comes from it.
        """
        self._saver = saver
        self._state = state
        self._policy = policy
        self._channel = channel
        self._saved_step = saved_step
        self._clock = PhaseClock()
        self.timer = timer or SaveTimer()
        """When the next save is due; it goes on with the state."""
        self.timer.resume()
        self._snapshot: Snapshot | None = None
        self._save: Save | None = None
        self._saves = 0
        self._begun_step: int | None = None
        self._postponed = False
        """Rank 0: a save was due while another took too long."""
        self._succeeded = False
        self._is_awaited = False
        """Whether training waits until the present step is on the volume."""
        self._failing: tuple[float, str] | None = None
        """Rank 0: wall clock of the first failure in a row, and the last error."""
        self._blocking = 0.0
        self._reported_at = 0.0
        self.seconds_within_steps = 0.0
        """The part of `seconds` that passed within optimizer steps."""
        self._parts = SavedParts(_own_connection(), saver.group.size)
        self._hook = state.optimizer.register_step_pre_hook(self._before_update)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds that training waited for saves, by phase of the job's ledger."""
        return self._clock.seconds()

    @property
    def saving(self) -> bool:
        """Whether a save is under way on this rank."""
        return self._save is not None

    def due(self) -> bool:
        """Whether the policy asks for a checkpoint after the step that is about to run. Rank 0
        asks; the commit brings the answer to the others.

        While a save is under way, the clock does not ask for another one. One that takes too long
        postpones the next, which is reported.
        """
        step = self._state.position.step + 1
        by_steps = due_by_steps(self._policy, step)
        if self._save is None:
            return by_steps or self._postponed or self.timer.due(self._policy)
        if not self.is_late():
            return by_steps
        if by_steps or self.timer.due(self._policy):
            self._postpone(step)
        return False

    def after_step(self) -> None:
        """Call it after every step: prepares the first save, and reports how the last one ended."""
        # After the first step and not before: the step makes the optimizer's state, and should come
        # soon.
        self._plan_once()
        if self._save and self._save.done:
            self._collect()

    def begin(self) -> None:
        """Begin to save the present state, beside the following steps, unless the save before takes
        too long. A failure is reported later, and a save is soon due again.
        """
        if self._finish(self.is_late):
            self._begin()
        elif self._saver.group.is_rank0:
            self._postpone(self._state.position.step)

    def _begin(self) -> None:
        self._postponed, self._blocking = False, 0.0
        with self._blocked():
            snapshot = self._fitting()
            self._saves += 1
            self._begun_step = self._state.position.step
            self._save = Save(
                self._saver, snapshot, self._parts, self._saves, self._state.position, self._policy
            )
        self.timer.restart()

    def plan(self) -> StatePlan:
        """What this rank stores of the present state."""
        return self._fitting().plan

    def save_durably(self) -> bool:
        """Save the present step, unless it is saved; returns whether it is on the volume. A failure
        is reported.
        """
        step = self._state.position.step
        if self._saved_step == step:
            return True
        self._is_awaited = True
        if self._begun_step != step or not self._save:
            self._finish()
            self._begin()
        self._finish()
        self._is_awaited = self._saved_step != step
        return not self._is_awaited

    def problem(self) -> VolumeProblem | None:
        """Rank 0: why the step for which training waits is not on the volume yet; None where that
        is no fault of the volume so far.
        """
        if not self._is_awaited:
            return None
        if self._failing is not None:
            since, error = self._failing
        elif self.is_late():
            since, error = float(round(time.time() - self._lasted)), "the volume does not answer"
        else:
            return None
        step = self._state.position.step
        kept = f"The ranks keep step {step} in memory, and save it as soon as the volume takes it."
        return VolumeProblem(
            path=str(self._saver.layout.checkpoints)[:TEXT_LIMIT],
            error=error[:TEXT_LIMIT],
            since=since,
            at_risk=f"{kept} If they end before, the job goes back to an older step.",
        )

    def finish(self, state_lives_on: bool = False) -> None:
        """Wait for the save under way. Call it before the process group is left.

        A state that goes on in memory does not wait for a save that takes too long: the volume may
        not answer for minutes.
        """
        self._hook.remove()
        has_ended = self._finish(self.is_late) if state_lives_on else self._finish()
        if not has_ended:
            self.let_go()

    def let_go(self) -> None:
        """End with a broken generation whose state goes on in memory: waits until that is copied.

        A save that all ranks have written is still published; any other is deleted.
        """
        if self._save:
            self._save.wait_for_copy()
        self.give_up(0.0)

    def give_up(self, seconds: float) -> None:
        """End with a broken generation whose state is lost; as `let_go`, but waits at most so long
        for the end of the save under way.
        """
        self._hook.remove()
        if self._save:
            self._save.give_up(seconds)

    def _plan_once(self) -> Snapshot:
        if self._snapshot is None:
            self._snapshot = Snapshot(StatePlan(self._state), self._saver.group.device)
        return self._snapshot

    def _fitting(self) -> Snapshot:
        if self._snapshot is not None and not self._snapshot.plan.fits():
            self._snapshot = None
        return self._plan_once()

    def _before_update(self, _optimizer: Optimizer, _args: object, _kwargs: object) -> None:
        if self._save is None:
            return
        with self._blocked() as start:
            self._save.wait_for_copy()
        self.seconds_within_steps += time.monotonic() - start

    def is_late(self) -> bool:
        """Rank 0: whether the save under way takes too long."""
        rank0 = self._saver.group.is_rank0
        return rank0 and self._save is not None and self._lasted > _PATIENCE_SECONDS

    @property
    def _lasted(self) -> float:
        """Seconds since the last save was begun."""
        return time.monotonic() - self.timer.last

    def _postpone(self, step: int) -> None:
        """Report, once for each save that takes too long, that the next one waits for its end."""
        if self._postponed or self._save is None:
            return
        self._postponed = True
        step_before, directory = self._save.position.step, self._save.directory
        why = f"the save of step {step_before} has not ended for {self._lasted:.0f} s"
        what = f"({directory}): the volume may not answer; this one follows when it has ended"
        self._report_failure(step, "write", f"{why} {what}")

    def _finish(self, too_late: Callable[[], bool] = lambda: False) -> bool:
        """Wait on all ranks until the last save has ended; then all know how. False where it became
        too late before.
        """
        if not self._saves:
            return True
        self._reported_at = time.monotonic()
        with self._blocked():
            if not until_all(self._is_over, too_late):
                return False
        if broadcast_from_rank0(self._collect):
            self._saved_step = self._begun_step
            self.timer.note_success()
        self._save = None
        return True

    def _is_over(self) -> bool:
        """Wait a moment; returns whether the save has ended here. Raises what broke this rank's
        part.
        """
        save = self._save
        if save and save.done and not self._saver.group.is_rank0:
            save.result()
        if save and time.monotonic() - self._reported_at > BUSY_SECONDS:
            self._reported_at = time.monotonic()
            self._channel.send(
                Busy(
                    generation=self._saver.generation,
                    rank=self._saver.group.rank,
                    doing="save",
                    step=save.position.step,
                    volume=self.problem(),
                )
            )
        return save is None or save.wait(_MOMENT_SECONDS)

    def _collect(self) -> bool:
        """Take note of how the save ended; returns, on rank 0, whether the last one succeeded.

        Raises FencedError on rank 0, c10d's errors when the store is gone.
        """
        save, self._save = self._save, None
        if save:
            try:
                published = save.result()
            except SaveError as failure:
                self._succeeded = False
                since = self._failing[0] if self._failing else time.time()
                self._failing = since, failure.error
                self.timer.note_failure(self._blocking)
                self._report_failure(save.position.step, failure.stage, failure.error)
            else:
                self._succeeded, self._failing = True, None
                if published is not None:  # on rank 0; the others only know of their own part
                    self.timer.note_success()
                    self._report_saved(published)
        return self._succeeded

    def _report_saved(self, published: Published) -> None:
        step = published.manifest.step
        self._channel.send(
            CheckpointSaved(
                generation=self._saver.generation,
                rank=self._saver.group.rank,
                step=step,
                path=str(self._saver.layout.published(step)),
                size_bytes=published.manifest.size_bytes,
                seconds=published.seconds,
                blocking_seconds=self._blocking,
                time=time.time(),
            )
        )
        if published.prune_problem:
            self._report_failure(step, "prune", published.prune_problem)

    @contextlib.contextmanager
    def _blocked(self) -> Iterator[float]:
        """Count the time inside as waiting for the save; yields its start (monotonic)."""
        start = time.monotonic()
        try:
            with self._clock.phase("checkpoint_save"):
                yield start
        finally:
            self._blocking += time.monotonic() - start

    def _report_failure(self, step: int, stage: Stage, error: str) -> None:
        rank_log.warning("checkpoint of step %d failed (%s): %s", step, stage, error)
        report = CheckpointFailed(
            generation=self._saver.generation,
            rank=self._saver.group.rank,
            step=step,
            stage=stage,
            error=error,
        )
        self._channel.send(report)


def _own_connection() -> Store:
    """A new connection to the process group's store, for the writers' threads: a connection serves
    one call at a time.
    """
    group = dist.group.WORLD
    assert group is not None, "the process group is made before"
    store: Store = group.get_group_store().clone()
    return store
