"""A generation that this rank trains in: decide, commit, record, report, save, end.

The built-in trainer's loop and a custom loop drive it alike. Neither knows of lineage, history
or the protocol of checkpoints.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from regroup_trainer.checkpoint.checkpointer import Checkpointer
from regroup_trainer.checkpoint.history_writer import History
from regroup_trainer.checkpoint.layout import Layout
from regroup_trainer.checkpoint.save import Saver
from regroup_trainer.checkpoint.save_schedule import SaveTimer
from regroup_trainer.errors import GenerationOverError
from regroup_trainer.parallel import process_group
from regroup_trainer.parallel.mesh import arrange
from regroup_trainer.parallel.process_group import report_loss
from regroup_trainer.protocol.generation import Decision
from regroup_trainer.protocol.message import TEXT_LIMIT
from regroup_trainer.protocol.rank_messages import (
    BUSY_SECONDS,
    Busy,
    Evaluated,
    Finished,
    GenerationOutcome,
    VolumeProblem,
)
from regroup_trainer.rank.joining import JoinedGeneration, is_generation_lost, park
from regroup_trainer.rank.program import Program
from regroup_trainer.rank.reporting import Measured, Reporter, utilization_of
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.recovery.step_log import StepLog, committed_step, lines_after
from regroup_trainer.recovery.volume_access import where_data_lies
from regroup_trainer.snapshots.snapshot_writer import MemorySnapshots, Source
from regroup_trainer.step.agreement import all_gather, broadcast_from_rank0
from regroup_trainer.step.phase_clock import PhaseClock
from regroup_trainer.step.state import TrainState
from regroup_trainer.step.stepper import Stepper
from regroup_trainer.step.updater import StepResult
from regroup_trainer.system.backoff import retry_seconds
from regroup_trainer.system.log_lines import rank_log

_LATE_DATA_SECONDS = 10.0
"""Training data that takes longer to come is reported as a problem of its volume."""
_POLL_SECONDS = 0.1
_GRACE_SECONDS = 2.0
"""How long a save under way, a memory snapshot and the last lines of the history may take when the
generation ends. All ranks remember the lines.
"""
_SAVE_PAUSE_SECONDS, _LONGEST_SAVE_PAUSE_SECONDS = 1.0, 30.0
"""After a failed save of a state that would be lost without it; doubled after each."""


@dataclass(frozen=True)
class Start:
    """What a generation starts with on this rank."""

    state: TrainState
    log: StepLog
    in_place: bool
    """Whether the state went on in the memory of the ranks."""
    saved_step: int | None = None
    """The step whose checkpoint is on the volume already."""
    timer: SaveTimer | None = None
    """Of saves, if the last one is known."""


class RunningGeneration:
    """One rank's part of a generation. All ranks call its methods after the same steps.

    End it by `finish`; after an error by `break_off`, or by `give_up` where the process ends.
    """

    def __init__(
        self,
        joined: JoinedGeneration,
        program: Program,
        stepper: Stepper,
        start: Start,
        history: History | None,
    ) -> None:
        """`history` is the generation's file of committed steps; rank 0 has it, no other rank."""
        record, identity = joined.assignment.record, program.identity
        self.number = record.number
        self.group = joined.group
        self.stepper = stepper
        self.state = start.state
        self.in_place = start.in_place
        self.busy = joined.busy
        """What this rank reports before its first step."""
        self.clock = PhaseClock()
        samples = identity.data.samples
        self.reporter = Reporter(
            joined.channel,
            self.number,
            self.group.rank,
            samples,
            self._measured,
            utilization_of(program, self.group),
        )
        self._joined = joined
        self._channel = joined.channel
        self._data = identity.data
        self._log = start.log
        self._history = history
        self._policy = record.desired.checkpoint
        self._retains = joined.channel.lasting and program.retains_state
        self._decision = Decision.CONTINUE
        """Rank 0: how the generation shall end, as soon as it can."""
        self._busy_at = 0.0
        self._has_ended = False
        layout = Layout(Path(record.desired.directory))
        saver = Saver(layout, self.number, self.group, identity, self._sync_history)
        self._checkpointer = Checkpointer(
            saver, self.state, self._policy, self.reporter, start.saved_step, start.timer
        )
        self._snapshots = MemorySnapshots(
            joined.assignment,
            saver,
            Source(self.state, self._checkpointer.plan, self._steps_to_carry),
            joined.channel,
        )

    @property
    def retains_state(self) -> bool:
        """Whether this rank's state stays in memory when the generation ends."""
        return self._retains

    @property
    def has_agent(self) -> bool:
        """Whether an agent receives what this rank waits for; else only the program's user does."""
        return self._channel.lasting

    @property
    def ready(self) -> bool:
        """Whether this rank has memory ready for a snapshot."""
        return self._snapshots.ready

    def decide(self) -> Decision:
        """What to do after the step that is about to be committed, as far as this rank knows.

        Rank 0 knows what the coordinator and the clock say; the commit brings it to the others.
        """
        if not self.group.is_rank0:
            return Decision.CONTINUE
        received = [
            message.decision
            for message in self._channel.poll()
            if message.generation == self.number
        ]
        ending = [decision for decision in received if decision >= Decision.LEAVE]
        self._decision = max([self._decision, *ending])
        saves = self._checkpointer.saving and not self._checkpointer.is_late()
        if self._decision == Decision.LEAVE and self._retains and saves:
            # Go on until the save has ended, so that members need not wait for the volume.
            return Decision.CONTINUE
        return max([self._decision, self._due(), *received])

    def _due(self) -> Decision:
        if self._checkpointer.due():
            return Decision.SAVE
        return Decision.SNAPSHOT if self._snapshots.due() else Decision.CONTINUE

    def record(self, result: StepResult, rate: float) -> None:
        """Record and report a committed step that was made with learning rate `rate`."""
        step = committed_step(self.number, self.group.size, result, self._data)
        self._log.append(step)
        if self._history is not None:
            self._history.append(step)
            if not result.updated:
                rank_log.warning(
                    "step %d: loss or gradients are not finite, the update was skipped",
                    result.position.step,
                )
        self.reporter.step(result, rate)
        self._checkpointer.after_step()
        self._snapshots.after_step()

    def report_evaluating(self) -> None:
        """Call it at each batch of an evaluation, so that a long one does not look like a hang.

        Raises GenerationOverError when the generation is over.
        """
        self._report_busy("evaluation")

    def report_data_awaited(self, since: float, met: str) -> None:
        """Call it again and again while training data does not come since this time (wall clock),
        with the error that reading met, if any. A long wait is reported, so that it does not look
        like a hang.

        Raises GenerationOverError when the generation is over.
        """
        late = time.time() - since > _LATE_DATA_SECONDS
        self._report_busy("waiting for data", self._late_data(since, met) if late else None)

    def _report_busy(self, doing: str, volume: VolumeProblem | None = None) -> None:
        if self._channel.is_over():
            raise GenerationOverError(f"generation {self.number} is over")
        now = time.monotonic()
        if now - self._busy_at < BUSY_SECONDS:
            return
        self._busy_at = now
        number, rank, step = self.number, self.group.rank, self.state.position.step
        self.reporter.send(
            Busy(generation=number, rank=rank, doing=doing, step=step, volume=volume)
        )

    def _late_data(self, since: float, met: str) -> VolumeProblem:
        where = where_data_lies(self._joined.assignment.record.desired)
        late = f"the training data does not come to rank {self.group.rank}"
        return VolumeProblem(
            path=where[:TEXT_LIMIT],
            error=f"{late}: {met or 'its volume may not answer'}"[:TEXT_LIMIT],
            since=since,
            at_risk="The state stays in memory, and training goes on when the data comes.",
        )

    def report_evaluation(self, loss: float, accuracy: float | None = None) -> None:
        """Report the loss on held-out samples after the present step, and the share of images that
        were classified right.
        """
        number, step = self.number, self.state.position.step
        if self.group.is_rank0:
            self.reporter.send(
                Evaluated(generation=number, rank=0, step=step, loss=loss, accuracy=accuracy)
            )

    def act(self, decision: Decision) -> GenerationOutcome | None:
        """Do what a commit decided for all ranks; returns how the generation ends, None if it goes
        on.
        """
        match decision:
            case Decision.LEAVE | Decision.RELOAD | Decision.STOP:
                return self._end(decision)
            case Decision.SAVE:
                self._checkpointer.begin()
            case Decision.SNAPSHOT:
                self._snapshots.begin()
            case Decision.CONTINUE:
                pass
        return None

    def save_result(self) -> GenerationOutcome:
        """Save the last step, however often it takes; only a decision to end without it stops the
        attempts.
        """
        return self._end(Decision.CONTINUE)

    def _end(self, decision: Decision) -> GenerationOutcome:
        """Save what is lost otherwise, however often it takes: the state exists in memory only, and
        a full disk can be freed. Returns how the generation ends.
        """
        failures = 0
        while self._needs_save(decision) and not self._checkpointer.save_durably():
            failures += 1
            self._snapshot_unsaved()
            pause = retry_seconds(failures, _SAVE_PAUSE_SECONDS, _LONGEST_SAVE_PAUSE_SECONDS)
            decision = self._wait(pause, decision)
        if decision == Decision.RELOAD:
            self._retains = False  # the next generation starts from the checkpoint
        if decision < Decision.LEAVE:
            return "completed"
        return "stop" if decision == Decision.STOP else "leave"

    def _snapshot_unsaved(self) -> None:
        """Have agents keep the state that the volume refuses, in case its ranks are killed."""
        if all(all_gather(self._snapshots.may_begin())):
            self._snapshots.begin()

    def _needs_save(self, decision: Decision) -> bool:
        """Whether a generation that ends so needs a checkpoint of its last step."""
        match decision:
            case Decision.LEAVE:
                return not self._retains
            case Decision.STOP:
                return self._policy.on_termination == "Save"
            case _:
                return True

    def _wait(self, seconds: float, decision: Decision) -> Decision:
        """Wait on all ranks for the volume, no longer than until a further decision than this one
        ends the generation. Returns the one that counts then.
        """
        until = time.monotonic() + seconds
        while True:
            newest, over = broadcast_from_rank0(
                lambda: (self._decide_without_volume(), time.monotonic() >= until)
            )
            if newest >= Decision.LEAVE and newest > decision:
                return newest
            if over:
                return decision
            time.sleep(_POLL_SECONDS)

    def _decide_without_volume(self) -> Decision:
        """Rank 0: report what the volume refuses, and see what is decided."""
        self._report_busy("waiting for the volume", self._checkpointer.problem())
        return self.decide()

    def finish(self, outcome: GenerationOutcome) -> ResidentState | None:
        """End by agreement: leave the process group in order and report the outcome.

        Returns the state that stays in memory for the next generation. None: this process ends.
        """
        self._checkpointer.finish(state_lives_on=outcome == "leave" and self._retains)
        self._snapshots.close(_GRACE_SECONDS)
        resident = self._resident() if outcome == "leave" else None
        self._close_history(0.0 if resident else _GRACE_SECONDS)
        process_group.leave()
        self._has_ended = True
        number, step = self.number, self.state.position.step
        kept = resident.retained() if resident else None
        self.reporter.send(
            Finished(
                generation=number, rank=self.group.rank, step=step, reason=outcome, retained=kept
            )
        )
        return resident

    def break_off(self, error: Exception) -> ResidentState | None:
        """End after an error that means that the generation is over.

        Returns the state that stays in memory, to be parked. None, and nothing is ended, when the
        error is this rank's own or the state is not whole.
        """
        resident = self._resident() if self._is_lost(error) else None
        if resident is not None:
            report_loss(self.group.rank, error)
            self._let_go()
            self.stepper.drop_proposal()
        return resident

    def give_up(self, error: BaseException | None = None) -> None:
        """End without the other ranks because the process ends, after `error` if there was one.

        The save under way, the snapshot and the history get a moment, together: the other ranks
        notice the end of this one only then. Nothing after the first end of the generation.
        """
        if self._has_ended:
            return
        if self._retains and isinstance(error, Exception) and self._is_lost(error):
            self._let_go()  # as live peers have the state, and wait for this rank's successor
            return
        self._has_ended = True
        until = time.monotonic() + _GRACE_SECONDS
        self.busy.end()
        self._checkpointer.give_up(_GRACE_SECONDS)
        self._snapshots.close(max(0.0, until - time.monotonic()))
        self._close_history(max(0.0, until - time.monotonic()))

    def _let_go(self) -> None:
        """End without the other ranks, while the state lives on."""
        self._has_ended = True
        self.busy.end()
        self._checkpointer.let_go()
        self._snapshots.close(0.0)
        self._close_history(0.0)

    def _is_lost(self, error: Exception) -> bool:
        return is_generation_lost(error, self._channel)

    def park(self, resident: ResidentState) -> None:
        """Leave the broken process group and wait; see `joining.park`."""
        park(self._joined.assignment, self._channel, resident)

    def _resident(self) -> ResidentState | None:
        """The state, if it is whole and worth keeping."""
        if not self._retains or not self.stepper.updater.whole:
            return None
        mesh = arrange(self.stepper.config.parallelism, self.group)
        return ResidentState(
            generation=self.number,
            world_size=self.group.size,
            updater=self.stepper.updater,
            log=self._log,
            shard=mesh.part,
            shards=mesh.parts,
            timer=self._checkpointer.timer,
        )

    def _measured(self) -> Measured:
        """Waiting for a save within a step counts as saving."""
        own = self.clock.seconds()
        own["step"] = own.get("step", 0.0) - self._checkpointer.seconds_within_steps
        return Measured(
            seconds={**own, **self._checkpointer.seconds},
            collective_seconds=self.stepper.collective_time.seconds(),
            volume=self._history.problem() if self._history is not None else None,
        )

    def _steps_to_carry(self) -> bytes:
        """The newest steps that may not be on the device yet, as lines of the history."""
        flushed = self._history.flushed_step if self._history is not None else 0
        return lines_after(flushed, self._log)

    def _close_history(self, seconds: float) -> None:
        if self._history is not None:
            self._history.close(seconds)

    def _sync_history(self) -> None:
        if self._history is not None:
            self._history.sync()
