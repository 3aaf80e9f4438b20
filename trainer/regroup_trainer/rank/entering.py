"""Entering a generation: from the joined process group to a generation that trains.

The steps, and who decides what, are in docs/design/0006-entering-a-generation.md.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from regroup_trainer.checkpoint import lineage
from regroup_trainer.checkpoint.history import known_end
from regroup_trainer.checkpoint.history_writer import Beginning, History
from regroup_trainer.checkpoint.layout import Head, Layout, RunIdentity
from regroup_trainer.checkpoint.save_schedule import SaveTimer, missed_by_steps
from regroup_trainer.checkpoint.selection import policy_in_force
from regroup_trainer.errors import ProgramRestartError
from regroup_trainer.parallel.process_group import GenerationGroup, report_loss
from regroup_trainer.protocol.channel import Channel
from regroup_trainer.protocol.generation import Assignment, RestoredFrom
from regroup_trainer.protocol.message import TEXT_LIMIT
from regroup_trainer.protocol.rank_messages import HistoryEnd, Restored
from regroup_trainer.rank.busy_reports import report_compilation
from regroup_trainer.rank.joining import (
    JoinedGeneration,
    await_commit_before_cut_off,
    is_generation_lost,
    join,
    park,
)
from regroup_trainer.rank.program import Program
from regroup_trainer.rank.running_generation import RunningGeneration, Start
from regroup_trainer.recovery.live_state import LiveState, Rebuild, continue_live_state
from regroup_trainer.recovery.resident_state import ResidentState
from regroup_trainer.recovery.restorer import Restorer
from regroup_trainer.recovery.volume_access import VolumeAccess
from regroup_trainer.snapshots.snapshot_reader import MemoryReader
from regroup_trainer.step.state import TrainState
from regroup_trainer.step.stepper import Stepper
from regroup_trainer.system.background import progress_noted


def enter_generation(
    joined: JoinedGeneration, program: Program, resident: ResidentState | None = None
) -> RunningGeneration:
    """Bring the state to where the run stands, record that the generation begins, and report it.

    `resident` is what this process kept of its last generation. All ranks call it. Raises
    TrainingError; FencedError when a newer generation has begun; ProgramRestartError when this
    process cannot go on and a new one can; c10d's errors when a peer is lost.
    """
    joined.busy.end()
    report_compilation(joined.assignment, joined.channel)
    attention = program.choose_attention(joined.group.device)
    program.agree_on_data(joined.group, _worker(joined))
    restorer = _restorer(joined, program.identity)
    rebuild = _reporting_rebuild(joined, program)
    with progress_noted(joined.busy.note_transfer):
        live = continue_live_state(
            restorer, program.config, resident, rebuild, program.after_update
        )
    if live is not None:
        start, report = _start_live(joined, restorer, live, resident)
    elif resident is not None and not program.can_rewind:
        raise ProgramRestartError("no peer has the newest state: the program has to start again")
    else:
        start, report = _start_restored(joined, restorer, program)
    joined.channel.send(_with_description(report, start.state, program, attention))
    history = _open_history(restorer, start) if joined.group.is_rank0 else None
    stepper = Stepper(start.state, program.config, joined.group, program.targets_per_sample)
    generation = RunningGeneration(joined, program, stepper, start, history)
    if generation.retains_state:
        await_commit_before_cut_off(joined, stepper)
    return generation


def _reporting_rebuild(joined: JoinedGeneration, program: Program) -> Rebuild:
    def rebuild(group: GenerationGroup, resident: ResidentState | None) -> TrainState:
        with joined.busy.during("building the model"):
            return program.rebuild(group, resident)

    return rebuild


def enter_next_generation(
    channel: Channel, program_of: Callable[[Assignment], Program], resident: ResidentState
) -> RunningGeneration:
    """Wait for the next generation and enter it with the resident state; where that generation
    breaks first, wait for the one after it.

    Raises as `enter_generation` does where the state cannot wait any longer.
    """
    while True:
        assignment = channel.next_assignment()
        try:
            return enter_generation(join(assignment, channel), program_of(assignment), resident)
        except ProgramRestartError:
            raise
        except Exception as error:
            if not resident.whole or not is_generation_lost(error, channel):
                raise
            report_loss(assignment.rank, error)
        park(assignment, channel, resident)


def _worker(joined: JoinedGeneration) -> str:
    """What identifies the process that a rank is a fork of. Without an agent each is its own."""
    place = joined.assignment.place
    return place.member if joined.channel.lasting else str(joined.group.rank)


def _restorer(joined: JoinedGeneration, identity: RunIdentity) -> Restorer:
    record = joined.assignment.record
    memory = MemoryReader(joined.assignment, record.snapshot) if record.snapshot else None
    layout = Layout(Path(record.desired.directory))
    volume = VolumeAccess(record, joined.group.rank, joined.channel)
    return Restorer(layout, record, joined.group, identity, volume, memory)


def _start_live(
    joined: JoinedGeneration, restorer: Restorer, live: LiveState, resident: ResidentState | None
) -> tuple[Start, Restored]:
    restorer.begin_from_live(live.agreement)
    timer = resident.timer if resident else None
    start = Start(live.state, live.log, in_place=True, timer=timer)
    return start, _report(joined, start.state, "Peers")


def _start_restored(
    joined: JoinedGeneration, restorer: Restorer, program: Program
) -> tuple[Start, Restored]:
    with joined.busy.during("building the model"):
        state = program.build(joined.group)
    choice = restorer.restore(state)
    if state.position.step == 0:
        program.begin_run(state, restorer.volume)
    if choice.manifest is not None:
        program.continue_data(choice.manifest.data.fingerprint)
    end = restorer.volume.on_rank0(lambda: _history_end(restorer))
    start = Start(
        state,
        choice.log,
        in_place=False,
        saved_step=choice.manifest.step if choice.manifest and choice.path else None,
        timer=_restored_timer(joined, choice.saved, state.position.step),
    )
    report = _report(
        joined,
        state,
        choice.restored_from,
        fallback_reason=choice.fallback_reason[:TEXT_LIMIT],
    )
    if not joined.group.is_rank0:
        return start, report
    found = {
        "path": str(choice.path) if choice.path else None,
        "skipped": choice.skipped,
        "history_end": end,
    }
    return start, report.model_copy(update=found)


def _restored_timer(joined: JoinedGeneration, saved: Head | None, step: int) -> SaveTimer:
    """Of saves, where the state of `step` was restored and `saved` is the newest on the volume: a
    memory snapshot may be newer than a save that failed.
    """
    timer = SaveTimer(_monotonic(saved.time) if saved else None)
    policy = joined.assignment.record.desired.checkpoint
    if missed_by_steps(policy, saved.step if saved else 0, step):
        timer.note_missed()
    return timer


def _history_end(restorer: Restorer) -> HistoryEnd | None:
    """What the volume shows that was committed before, unless the policy starts another line."""
    layout, record = restorer.layout, restorer.record
    with contextlib.suppress(OSError):  # then losses are counted by what was reported
        links = lineage.ending_with(layout, record.number)[:-1]
        if policy_in_force(links, record.desired).policy == "Latest":
            return known_end(layout, links)
    return None


def _report(
    joined: JoinedGeneration,
    state: TrainState,
    restored_from: RestoredFrom,
    fallback_reason: str = "",
) -> Restored:
    return Restored(
        generation=joined.assignment.record.number,
        rank=joined.group.rank,
        step=state.position.step,
        restored_from=restored_from,
        seconds=time.monotonic() - joined.began,
        join_seconds=joined.joined_at - joined.began,
        fallback_reason=fallback_reason,
    )


def _with_description(
    report: Restored, state: TrainState, program: Program, attention: str
) -> Restored:
    """The report; on rank 0 with what is trained."""
    if report.rank != 0:
        return report
    parameters = sum(parameter.numel() for parameter in state.model.parameters())
    return report.model_copy(
        update={
            "parameters": parameters,
            "total_steps": program.total_steps,
            "attention": attention,
        }
    )


def _open_history(restorer: Restorer, start: Start) -> History:
    """The generation's history, with the steps that the volume may not have yet."""
    beginning = Beginning(start.state.position.step, start.log.steps)
    return History(restorer.layout, restorer.record.number, beginning)


def _monotonic(wall_clock: float) -> float:
    """A past time of the wall clock, by the monotonic clock."""
    return time.monotonic() - max(0.0, time.time() - wall_clock)
