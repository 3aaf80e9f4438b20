"""What surrounds the steps of a generation, whoever computes them: restore, decide, record, report, save, end.

The built-in trainer's loop and a user's own loop (`session`) are both driven by it; neither knows of lineage, history
or the commit protocol of checkpoints.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from types import TracebackType
from typing import Literal

from regroup_trainer import world as worlds
from regroup_trainer.agreement import lead
from regroup_trainer.channel import Channel
from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.checkpointer import Checkpointer
from regroup_trainer.checkpoint.layout import Layout, RunIdentity
from regroup_trainer.checkpoint.load import Restorer
from regroup_trainer.checkpoint.save import Saver
from regroup_trainer.clock import PhaseClock
from regroup_trainer.contract import (
    Assignment,
    Busy,
    Decision,
    Evaluated,
    Finished,
    GenerationNumber,
    Kept,
    Restored,
    Rung,
)
from regroup_trainer.errors import GenerationOverError
from regroup_trainer.history import CommittedStep, History, last_step
from regroup_trainer.offers import Agreement
from regroup_trainer.reporting import Reporter
from regroup_trainer.snapshots.reader import MemoryReader
from regroup_trainer.snapshots.writer import MemorySnapshots
from regroup_trainer.state import TrainState
from regroup_trainer.step import StepResult
from regroup_trainer.world import World

Ending = Literal["completed", "leave", "stop"]
_TELL_SECONDS = 1.0
_MOMENT_SECONDS = 0.1
_RESULT_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between attempts to save the last step."""
_TRAIL_STEPS = 2000
"""So many lines of history can be repeated when rank 0 is lost with what its machine had not written out."""


@dataclass
class Trail:
    """What outlives a generation in the memory of its ranks, besides the state."""

    steps: deque[tuple[GenerationNumber, int, StepResult]] = field(default_factory=lambda: deque(maxlen=_TRAIL_STEPS))
    """The newest committed steps, with their generation and its world size."""
    last_save: float | None = None
    """When (monotonic) the last save was begun."""


class Engine:
    """One rank's part of a generation. All ranks call its methods after the same steps.

    Use it as a context manager around what follows `restore`: a broken generation then ends what goes on beside it.
    """

    def __init__(
        self, assignment: Assignment, world: World, channel: Channel, identity: RunIdentity, trail: Trail | None = None
    ) -> None:
        """`trail` is what this rank remembers, where its state may outlive the generation; None where it may not."""
        self._assignment = assignment
        self._record = assignment.record
        self.number = assignment.record.number
        self._policy = assignment.record.desired.checkpoint
        self.world = world
        self._channel = channel
        self._identity = identity
        self._layout = Layout(Path(assignment.record.desired.directory))
        source = self._record.snapshot
        memory = MemoryReader(assignment, source) if source else None
        self._restorer = Restorer(self._layout, self._record, world, identity, memory)
        self._history: History | None = None
        self._told_at = 0.0
        self._ending = Decision.CONTINUE
        """How the generation shall end, once it can."""
        self.trail = trail
        self.clock = PhaseClock()
        self.reporter = Reporter(channel, assignment.record.number, world.rank, identity.data.samples, self._seconds)

    def restore(self, state: TrainState, since: float, total_steps: int | None = None, attention: str = "") -> None:
        """Bring `state` to where the run stands on the volume, and tell so; from now on it is this engine's state.

        `since` is the monotonic time at which this rank began; `total_steps` is told where only the caller knows them,
        and `attention` names the kernel that serves.

        Raises StorageError, CheckpointError, ConfigurationError; FencedError when a newer generation has begun; c10d's
        errors when a peer is lost.
        """
        choice = self._restorer.restore(state)
        if self.trail is not None:
            self.trail.steps.clear()  # they led to a state that was given up
        restored = self._restored(state, choice.rung, since).model_copy(update={"fallen": choice.fallen[:4096]})
        if self.world.leads:
            path = str(choice.path) if choice.path else None
            restored = restored.model_copy(update={"path": path, "skipped": choice.skipped})
        last_save = time.monotonic() - max(0.0, time.time() - choice.saved.time) if choice.saved else None
        self._start(state, self._described(restored, state, total_steps, attention))
        self._open(state, choice.manifest.step if choice.manifest and choice.path else None, last_save)

    def may_take_over(self, agreement: Agreement) -> bool:
        """Whether the state that lives in the ranks is the newest of the run. Raises as `take_over` does."""
        return self._restorer.continues(agreement.generation, agreement.void)

    def take_over(
        self, state: TrainState, agreement: Agreement, since: float, total_steps: int | None = None, attention: str = ""
    ) -> None:
        """Go on with `state`, which all ranks agreed upon, and tell so; the rest is as for `restore`.

        Raises StorageError; FencedError when a newer generation has begun; c10d's errors when a peer is lost.
        """
        self._restorer.take_over(agreement.generation, agreement.step)
        restored = self._restored(state, "L0", since)
        self._start(state, self._described(restored, state, total_steps, attention))
        if self._history is not None and self.trail is not None:
            self._repeat(self.trail, self._history)
        self._open(state, None, self.trail.last_save if self.trail else None)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.give_up()

    def give_up(self) -> None:
        """The generation broke: end what goes on beside it."""
        lives_on = self.trail is not None
        self._checkpointer.give_up(state_lives_on=lives_on)
        self._snapshots.close(wait=not lives_on)
        self._remember()

    def decide(self) -> Decision:
        """What to do after the step that is about to be committed, as far as this rank knows.

        Rank 0 speaks for the coordinator and for the clock; the others learn it from the commit.
        """
        if not self.world.leads:
            return Decision.CONTINUE
        told = [word.decision for word in self._channel.poll() if word.generation == self.number]
        self._ending = max([self._ending, *(decision for decision in told if decision >= Decision.LEAVE)])
        if self._ending == Decision.LEAVE and self.trail is not None and self._checkpointer.saving:
            return Decision.CONTINUE  # until the save has ended: who joins or leaves shall not wait for the volume
        return max([self._ending, self._due(), *told])

    def _due(self) -> Decision:
        if self._checkpointer.due():
            return Decision.SAVE
        return Decision.SNAPSHOT if self._snapshots.due() else Decision.CONTINUE

    def committed(self, result: StepResult, rate: float) -> None:
        """Note a step of all ranks, made with learning rate `rate`."""
        self.note(result)
        self.reporter.step(result, rate)
        self._checkpointer.after_step()
        self._snapshots.after_step()

    def note(self, result: StepResult) -> None:
        """Keep a step of all ranks in the history."""
        if self._history is None and self.trail is None:
            return
        if self.world.leads and not result.updated:
            print(
                f"step {result.position.step}: loss or gradients are not finite, the update was skipped",
                file=sys.stderr,
            )
        number, size = self.number, self.world.size
        if self._history is not None:
            self._history.append(self._line(number, size, result))
        if self.trail is not None:
            self.trail.steps.append((number, size, result))

    def evaluating(self) -> None:
        """Call it now and then in an evaluation: without a sign of life a long one would look like a hang.

        Raises GenerationOverError when there is no need to go on.
        """
        if self._channel.is_over():
            raise GenerationOverError(f"generation {self.number} is over")
        now = time.monotonic()
        if now - self._told_at < _TELL_SECONDS:
            return
        self._told_at = now
        number, rank, step = self.number, self.world.rank, self._state.position.step
        self.reporter.send(Busy(generation=number, rank=rank, doing="evaluation", step=step))

    def evaluated(self, loss: float, accuracy: float | None = None) -> None:
        """Tell the loss on held-out samples after the present step, and what share of images was classified right."""
        number, step = self.number, self._state.position.step
        if self.world.leads:
            self.reporter.send(Evaluated(generation=number, rank=0, step=step, loss=loss, accuracy=accuracy))

    def act(self, decision: Decision) -> Ending | None:
        """Do what all ranks learned by a commit; returns how the generation ends, if it does."""
        match decision:
            case Decision.LEAVE | Decision.RELOAD:
                if decision == Decision.RELOAD:
                    self.trail = None
                if self.trail is None:
                    self._checkpointer.save_durably()  # if it fails the next world resumes from an older one
                return "leave"
            case Decision.STOP:
                if self._policy.on_termination == "Save":
                    self._checkpointer.save_durably()
                return "stop"
            case Decision.SAVE:
                self._checkpointer.begin()
            case Decision.SNAPSHOT:
                self._snapshots.begin()
            case Decision.CONTINUE:
                pass
        return None

    def save_result(self) -> Ending:
        """Save the last step, however often it takes: the result is in memory only, and a full disk can be freed.

        Only a decision that ends the generation ends the trying.
        """
        for pause in chain(_RESULT_PAUSES, repeat(_RESULT_PAUSES[-1])):
            if self._checkpointer.save_durably():
                break
            decision = self._wait(pause)
            if ending := self.act(decision) if decision >= Decision.LEAVE else None:
                return ending
        return "completed"

    def _wait(self, seconds: float) -> Decision:
        """Wait, all ranks alike, unless they are told to end; returns what they are told."""
        until = time.monotonic() + seconds
        while True:
            decision, over = lead(lambda: (self.decide(), time.monotonic() >= until))
            if over or decision >= Decision.LEAVE:
                return decision
            time.sleep(_MOMENT_SECONDS)

    def finish(self, ending: Ending, kept: Kept | None = None) -> None:
        """Leave the world in order, and tell so; `kept` is what lives on in this process."""
        self._checkpointer.finish()
        self._snapshots.close(wait=True)
        self._remember()
        worlds.leave()
        number, step = self.number, self._state.position.step
        self.reporter.send(Finished(generation=number, rank=self.world.rank, step=step, reason=ending, kept=kept))

    def _seconds(self) -> dict[str, float]:
        """By phase of the job's account; waiting for a save within a step counts as saving."""
        own = self.clock.seconds()
        own["step"] = own.get("step", 0.0) - self._checkpointer.seconds_within_steps
        return {**own, **self._checkpointer.seconds}

    def _restored(self, state: TrainState, rung: Rung, since: float) -> Restored:
        number, rank, step = self.number, self.world.rank, state.position.step
        return Restored(generation=number, rank=rank, step=step, rung=rung, seconds=time.monotonic() - since)

    def _start(self, state: TrainState, restored: Restored) -> None:
        self._state = state
        self.reporter.send(restored)
        if self.world.leads:
            self._history = History(self._layout.history_file(self.number))

    def _open(self, state: TrainState, saved_step: int | None, last_save: float | None) -> None:
        saver = Saver(self._layout, self.number, self.world, self._identity, self._settle)
        self._checkpointer = Checkpointer(saver, state, self._policy, self.reporter, saved_step, last_save)
        self._snapshots = MemorySnapshots(self._assignment, saver, state, self._checkpointer.plan, self._channel)

    def _described(self, report: Restored, state: TrainState, total_steps: int | None, attention: str) -> Restored:
        if not self.world.leads:
            return report
        parameters = sum(parameter.numel() for parameter in state.model.parameters())
        return report.model_copy(update={"parameters": parameters, "total_steps": total_steps, "attention": attention})

    def _line(self, number: GenerationNumber, world_size: int, result: StepResult) -> CommittedStep:
        count = self._identity.data.global_batch_size
        first = result.position.samples - count
        return CommittedStep(
            generation=number,
            step=result.position.step,
            world=world_size,
            epoch=first // self._identity.data.samples,
            first=first,
            count=count,
            hash=result.commit.digest,
            loss=result.commit.loss,
        )

    def _repeat(self, trail: Trail, history: History) -> None:
        """Note what a former rank 0 may not have brought to the volume. Raises StorageError."""
        records = lineage.read(self._layout)
        noted = last_step(self._layout, lineage.chain(records, records[self.number].parent))
        for number, size, result in trail.steps:
            if result.position.step > noted:
                history.append(self._line(number, size, result))

    def _remember(self) -> None:
        if self.trail is not None:
            self.trail.last_save = self._checkpointer.last_save

    def _settle(self) -> None:
        if self._history is not None:
            self._history.sync()
