"""Applies the reports of ranks to the coordinator's state. Pure.

A report counts only if it is of the current generation and comes from the member that runs the
rank. All others are dropped, so that a fenced member or generation changes nothing.
"""

from __future__ import annotations

from regroup_trainer.coordinator.accounting import Gpus, loss_of
from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration, Failure, LastCommit
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.coordinator.restart_budget import describe, is_asked_to_end
from regroup_trainer.coordinator.transitions import answer_request
from regroup_trainer.protocol.agent_messages import RankExit, Stack
from regroup_trainer.protocol.exit_codes import PORT_TAKEN_EXIT_CODE
from regroup_trainer.protocol.job_status import Outcome
from regroup_trainer.protocol.ledger import FAILURES
from regroup_trainer.protocol.rank_messages import (
    Busy,
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Finished,
    Parked,
    Progress,
    Report,
    Restored,
    SnapshotsOff,
    VolumeProblem,
)
from regroup_trainer.protocol.restore_source import describe_source

MOST_PORT_RACES = 5
"""Lost races for the port of a program that are charged to nobody; more are the program's."""


def on_report(state: State, report: Report, member: Member, now: float) -> None:
    """Apply a report, or drop it."""
    current = state.current
    if current is None or report.generation != current.number or state.outcome is not None:
        return
    place = current.place_of_rank(report.rank)
    if place is None or place.member != member.name:
        return
    if not _waits_without_state(report, current):
        current.last_report = now
    if isinstance(report, Restored | Progress):
        member.step = report.step
    if isinstance(report, Stack):
        if current.diagnosed_at is not None:
            current.frames[report.rank] = report.innermost()
    elif _is_activity(report, current):
        current.last_activity = now
    _apply(state, report, current, now)


def _waits_without_state(report: Report, current: CurrentGeneration) -> bool:
    """Whether a rank waits for a volume while no rank has a state. A planned end need not wait for
    it: there is nothing to save.
    """
    lives = current.restored or current.record.restored_from in ("Peers", "Snapshot")
    return isinstance(report, Busy) and report.volume is not None and not lives


def _is_activity(report: Report, current: CurrentGeneration) -> bool:
    """Whether work was done since the last report; a repeated step is none, but for a script, whose
    steps may begin anew.
    """
    if not isinstance(report, Progress) or current.progress is None or current.unmanaged:
        return True
    return report.step > current.progress.step


def _apply(state: State, report: Report, current: CurrentGeneration, now: float) -> None:
    match report:
        case Restored():
            _on_restored(state, report, current, now)
        case Progress():
            _on_progress(state, report, current, now)
        case CheckpointSaved():
            state.checkpoint, state.failed_save = report, ""
            state.volume.for_ranks = None
            text = f"step {report.step} saved to {report.path} in {report.seconds:.1f} s"
            state.journal.emit_rarely(state.wall(now), "CheckpointSaved", text)
            answer_request(state, current, report)
        case CheckpointFailed():
            state.failed_save = _failed_save(state, report)
            state.emit(now, "CheckpointFailed", state.failed_save, "Warning")
            answer_request(state, current, report)
        case SnapshotsOff():
            state.emit(now, "SnapshotsOff", report.why, "Warning")
        case Evaluated():
            state.evaluation = report
        case Busy(volume=VolumeProblem()):
            state.volume.for_ranks = report.volume
        case Busy(lasting=True):
            current.busy[report.rank] = report
        case Parked():
            current.left_at = now
            _on_parked(state, report, current, now)
        case Finished():
            current.left_at = now
            _on_finished(state, report, current, now)
        case RankExit():
            current.left_at = now
            _on_exit(state, report, current, now)


def _failed_save(state: State, report: CheckpointFailed) -> str:
    """What failed, and what there is instead."""
    if report.stage == "prune":
        what = f"old checkpoints could not be deleted after that of step {report.step}"
        return f"{what}, which is whole: {report.error}"
    text = f"checkpoint of step {report.step} failed ({report.stage}): {report.error}"
    newest = state.checkpoint
    return f"{text}; the newest is that of step {newest.step}" if newest else text


def announce_volume(state: State, now: float) -> None:
    """Emit an event when the volume becomes unavailable, and when it is back; once that is due,
    where the last one was a short while ago.
    """
    problem, volume, wall = state.volume.problem, state.volume, state.wall(now)
    if (problem is not None) == volume.announced:
        return
    if problem is not None:
        done = state.journal.emit_rarely(wall, "VolumeUnavailable", problem.sentence, "Warning")
    else:
        done = state.journal.emit_rarely(wall, "VolumeAvailable", "the volume answers again")
    if done:
        volume.announced = problem is not None


def _on_restored(state: State, report: Restored, current: CurrentGeneration, now: float) -> None:
    former = current.restored.get(report.rank)
    current.restored[report.rank] = report
    is_of_script = report.restored_from == "Script"
    state.started = state.started or not is_of_script
    if report.rank != 0:
        return
    current.restored_at = now
    if not is_of_script:
        state.resumed.append((report.generation, report.step))
    if former is not None and former.restored_from == "Script":
        return  # a script has written a step before its Session
    origin = f"the state comes from {describe_source(report.restored_from)}"
    if report.fallback_reason:
        text = f"{origin}: {report.fallback_reason}"
        state.emit(now, "SnapshotPassedOver", text, "Warning")
    first = current.previous_end is None and current.before is None
    state.account.restored(first, report.seconds, now, state.members.ranks)
    count_loss(state, report, current)
    state.volume.for_ranks = None
    if state.progress is not None and state.progress.step > report.step:
        # What is published now is what a later coordinator takes for committed.
        state.progress = state.progress.model_copy(update={"step": report.step})
    before = current.before
    state.committed = LastCommit(report.step, before.time if before else state.wall(now))
    for skipped in report.skipped:
        instead = f"{origin} of step {report.step}"
        text = f"{skipped.path} cannot be used ({skipped.why}): {instead}"
        state.emit(now, "CheckpointCorrupt", text, "Warning")


def count_loss(state: State, report: Restored, current: CurrentGeneration) -> None:
    """Book the steps that must be done again.

    A coordinator that starts without members may learn only here, from the volume, that the job
    has trained before. That is no failure: the job may have been suspended without a save.
    """
    before, history = current.before, report.history_end
    if history is not None and history.world_size and before is None:
        before = current.before = LastCommit(history.step, history.time)
    loss = loss_of(report, before)
    if loss.steps and current.unseen is not None:
        state.recoveries.open_unseen(current.record, current.unseen)
    state.recoveries.restored(report, loss)
    if before is not None and loss.steps:
        state.account.lost(loss.steps, loss.steps * before.step_seconds, before.world_size)


def _on_progress(state: State, report: Progress, current: CurrentGeneration, now: float) -> None:
    current.pace.note(report.rank, report.compute_seconds)
    current.busy.pop(report.rank, None)
    current.report_seconds = max(current.report_seconds, report.report_seconds)
    if _is_last_commit(state, report, current):
        step_seconds = state.committed.step_seconds if state.committed else 0.0
        state.committed = LastCommit(
            report.step,
            report.time,
            current.step_seconds(report) or step_seconds,
            current.world_size,
        )
    if _is_first_step(report, current):
        _emit_recovery(state, report, current, now)
    if current.first_commit is None:
        current.first_commit, current.first_commit_at = report, now
    if report.rank == 0 and (
        current.progress is None or report.step >= current.progress.step or current.unmanaged
    ):
        _emit_skipped(state, report, current, now)
        state.volume.for_ranks = report.volume
        gpus = Gpus(held=state.members.ranks, training=current.world_size)
        state.account.progress(report.seconds, now, gpus)
        current.progress = state.progress = report


def _is_last_commit(state: State, report: Progress, current: CurrentGeneration) -> bool:
    """Whether it is the highest step, or a script has gone back by itself, as rank 0 reports."""
    if state.committed is None or report.step > state.committed.step:
        return True
    before = current.progress.step if current.progress else 0
    return current.unmanaged and report.rank == 0 and report.step < before


def _is_first_step(report: Progress, current: CurrentGeneration) -> bool:
    """Whether it is the first of its generation. Only rank 0 of a script says where it resumed."""
    if current.unmanaged:
        return report.rank == 0 and current.progress is None
    return current.first_commit is None


def _emit_skipped(state: State, report: Progress, current: CurrentGeneration, now: float) -> None:
    before = current.progress.skipped if current.progress else 0
    if report.skipped > before:
        since = f"of generation {current.number} were left out by step {report.step}"
        text = f"{report.skipped} updates {since}: loss or gradients were not finite"
        state.journal.emit_rarely(state.wall(now), "NonFiniteLoss", text, "Warning")


def _emit_recovery(state: State, report: Progress, current: CurrentGeneration, now: float) -> None:
    trains_already = current.unseen is not None and current.restored_at is None
    done = state.recoveries.first_step(report, None if trains_already else current.before)
    if done is None:
        return
    planned = done.cause not in FAILURES and not done.lost_steps
    lost = "" if planned else f", {done.lost_steps or 0} steps lost"
    ranks = f"{done.world_size_before} -> {done.world_size_after} ranks"
    resumed = f"resumed from step {done.resumed_from_step} of {describe_source(done.restored_from)}"
    down = "" if done.down_seconds is None else f", {done.down_seconds:.1f} s down"
    text = f"training goes on: {ranks}, {resumed}{down}{lost}"
    state.emit(now, "Resized" if planned else "Recovered", text)


def _on_finished(state: State, report: Finished, current: CurrentGeneration, now: float) -> None:
    """The job is completed when all ranks are.

    A program that ends in order after a signal has not completed its work.
    """
    current.finished[report.rank] = report
    current.busy.pop(report.rank, None)
    if report.retained is not None:
        current.retained[report.rank] = report.retained
    if not current.ended or current.failure is not None:
        return
    if all(end.reason == "completed" for end in current.finished.values()):
        step = f", after step {current.progress.step}" if current.progress else ""
        count = len(current.finished)
        ranks = f"the program ended well on {count} rank{'' if count == 1 else 's'}{step}"
        text = ranks if current.unmanaged else f"trained {report.step} steps"
        state.emit(now, "Completed", text)
        state.book_wait(now)
        state.conclude(Outcome(result="completed", message=text))


def _on_parked(state: State, report: Parked, current: CurrentGeneration, now: float) -> None:
    """A rank left its collectives. It may be the first to report that the generation failed."""
    current.retained[report.rank] = report.retained
    if current.failure is not None:
        return
    place = current.place_of_rank(report.rank)
    where = f" on {place.where}" if place else ""
    message = f"rank {report.rank}{where} lost a connection to its peers"
    current.failure = Failure(now, "infrastructure", message, place, provisional=True)
    state.lose_disconnected(now)


def _on_exit(state: State, report: RankExit, current: CurrentGeneration, now: float) -> None:
    """The first cause counts. Ranks that end since they lost a peer are never the first cause."""
    current.retained.pop(report.rank, None)
    if report.rank in current.exits:
        return
    current.exits[report.rank] = report
    if current.finalized:
        return
    known = current.failure
    lost_port = (
        report.exit_code == PORT_TAKEN_EXIT_CODE
        and state.start_failures.port_races < MOST_PORT_RACES
    )
    if known is not None and not (known.provisional and (lost_port or report.cause != "peer")):
        return
    place = current.place_of_rank(report.rank)
    message = describe(report, place)
    if lost_port:
        state.start_failures.port_races += 1
        current.failure = Failure(now, "infrastructure", message, place, exit=report)
        return
    if is_asked_to_end(report):
        message = f"{message}: a signal from outside the job, as when a node shuts down"
        current.failure = Failure(now, "preemption", message, place, exit=report)
        return
    if report.cause != "peer":
        current.failure = Failure(now, "application", message, place, exit=report)
        return
    message = f"a connection between ranks failed: {message}"
    current.failure = Failure(now, "infrastructure", message, place, exit=report, provisional=True)
    state.lose_disconnected(now)
