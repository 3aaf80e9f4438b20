"""What surrounds the steps of a generation, whoever computes them: restore, decide, record, report, save, end.

The built-in trainer's loop and a user's own loop (`session`) are both driven by it; neither knows of lineage, history
or the commit protocol of checkpoints.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Literal

from regroup_trainer import world as worlds
from regroup_trainer.channel import Channel
from regroup_trainer.checkpoint.checkpointer import Checkpointer
from regroup_trainer.checkpoint.layout import Layout, RunIdentity
from regroup_trainer.checkpoint.load import Choice, Restorer
from regroup_trainer.checkpoint.save import Saver
from regroup_trainer.clock import PhaseClock
from regroup_trainer.contract import Assignment, Decision, Evaluated, Finished, Restored
from regroup_trainer.history import CommittedStep, History
from regroup_trainer.reporting import Reporter
from regroup_trainer.state import TrainState
from regroup_trainer.step import StepResult
from regroup_trainer.world import World

Ending = Literal["completed", "leave", "stop"]


class Engine:
    """One rank's part of a generation. All ranks call its methods after the same steps.

    Use it as a context manager around what follows `restore`: a broken generation then ends what goes on beside it.
    """

    def __init__(self, assignment: Assignment, world: World, channel: Channel, identity: RunIdentity) -> None:
        self._record = assignment.record
        self._policy = assignment.record.desired.checkpoint
        self._world = world
        self._channel = channel
        self._identity = identity
        self._layout = Layout(Path(assignment.record.desired.directory))
        self._history: History | None = None
        self.clock = PhaseClock()
        self.reporter = Reporter(channel, assignment.record.number, world.rank, identity.data.samples)

    def restore(self, state: TrainState, since: float, total_steps: int | None = None, attention: str = "") -> None:
        """Bring `state` to where the run stands, and tell so; from now on it is this engine's state.

        `since` is the monotonic time at which this rank began; `total_steps` is told where only the caller knows them,
        and `attention` names the kernel that serves.

        Raises StorageError, CheckpointError, ConfigurationError; FencedError when a newer generation has begun; c10d's
        errors when a peer is lost.
        """
        choice = Restorer(self._layout, self._record, self._world, self._identity).restore(state)
        self._state = state
        self.reporter.send(self._restored(choice, time.monotonic() - since, total_steps, attention))
        if self._world.leads:
            self._history = History(self._layout.history_file(self._record.number))
        saver = Saver(self._layout, self._record.number, self._world, self._identity, self._settle)
        saved_step = choice.manifest.step if choice.manifest else None
        self._checkpointer = Checkpointer(saver, state, self._policy, self.reporter, saved_step)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._checkpointer.give_up()

    def decide(self) -> Decision:
        """What to do after the step that is about to be committed, as far as this rank knows.

        Rank 0 speaks for the coordinator and for the clock; the others learn it from the commit.
        """
        if not self._world.leads:
            return Decision.CONTINUE
        told = [word.decision for word in self._channel.poll() if word.generation == self._record.number]
        due = Decision.SAVE if self._checkpointer.due() else Decision.CONTINUE
        return max([*told, due])

    def committed(self, result: StepResult, rate: float) -> None:
        """Note a step of all ranks, made with learning rate `rate`."""
        if self._history is not None:
            self._note(result, self._history)
        self.reporter.step(result, rate, self._seconds())
        self._checkpointer.after_step()

    def evaluated(self, loss: float, accuracy: float | None = None) -> None:
        """Tell the loss on held-out samples after the present step, and what share of images was classified right."""
        number, step = self._record.number, self._state.position.step
        if self._world.leads:
            self.reporter.send(Evaluated(generation=number, rank=0, step=step, loss=loss, accuracy=accuracy))

    def act(self, decision: Decision) -> Ending | None:
        """Do what all ranks learned by a commit; returns how the generation ends, if it does."""
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

    def save_result(self) -> None:
        """Save the last step, however often it takes."""
        self._checkpointer.save_result()

    def finish(self, ending: Ending) -> None:
        """Leave the world in order, and tell so."""
        self._checkpointer.finish()
        worlds.leave()
        number, step = self._record.number, self._state.position.step
        self.reporter.send(Finished(generation=number, rank=self._world.rank, step=step, reason=ending))

    def _seconds(self) -> dict[str, float]:
        """By phase of the job's account; waiting for a save within a step counts as saving."""
        own = self.clock.seconds()
        own["step"] = own.get("step", 0.0) - self._checkpointer.seconds_within_steps
        return {**own, **self._checkpointer.seconds}

    def _restored(self, choice: Choice, seconds: float, total_steps: int | None, attention: str) -> Restored:
        number, step = self._record.number, self._state.position.step
        report = Restored(generation=number, rank=self._world.rank, step=step, seconds=seconds)
        if not self._world.leads:
            return report
        return report.model_copy(
            update={
                "path": str(choice.path) if choice.path else None,
                "skipped": choice.skipped,
                "parameters": sum(parameter.numel() for parameter in self._state.model.parameters()),
                "total_steps": total_steps,
                "attention": attention,
            }
        )

    def _note(self, result: StepResult, history: History) -> None:
        if not result.updated:
            print(f"step {result.position.step}: gradients are not finite, the update was skipped", file=sys.stderr)
        count = self._identity.data.global_batch_size
        first = result.position.samples - count
        history.append(
            CommittedStep(
                generation=self._record.number,
                step=result.position.step,
                world=self._world.size,
                epoch=first // self._identity.data.samples,
                first=first,
                count=count,
                hash=result.commit.digest,
                loss=result.commit.loss,
            )
        )

    def _settle(self) -> None:
        if self._history is not None:
            self._history.sync()
