"""What ranks tell: heard only if it is of the current generation and told by the member that runs the rank."""

from __future__ import annotations

from regroup_trainer.contract import (
    CheckpointFailed,
    CheckpointSaved,
    Evaluated,
    Finished,
    Progress,
    RankExit,
    Report,
    Restored,
    SnapshotsOff,
    Stack,
    Standing,
)
from regroup_trainer.coordinator.membership import Member
from regroup_trainer.coordinator.restarts import describe
from regroup_trainer.coordinator.state import State
from regroup_trainer.coordinator.world import Break, LastCommit, World
from regroup_trainer.job_status import Verdict


def hear(state: State, report: Report, member: Member, now: float) -> None:
    """Take a report over, or drop it: the reports of a fenced member or generation change nothing."""
    world = state.world
    if world is None or report.generation != world.number or state.verdict is not None:
        return
    place = world.record.place_of_rank(report.rank)
    if place is None or place.member != member.name:
        return
    world.heard = now
    if isinstance(report, Restored | Progress):
        member.step = report.step
    if isinstance(report, Stack):
        world.stacks[report.rank] = report
    elif not isinstance(report, Progress) or world.progress is None or report.step > world.progress.step:
        world.moved = now
    _take_over(state, report, world, now)


def _take_over(state: State, report: Report, world: World, now: float) -> None:
    match report:
        case Restored():
            _restored(state, report, world, now)
        case Progress():
            _progress(state, report, world, now)
        case CheckpointSaved():
            state.checkpoint, state.failed_save = report, ""
            text = f"step {report.step} saved to {report.path} in {report.seconds:.1f} s"
            state.journal.tell_rarely(state.wall(now), "CheckpointSaved", text)
        case CheckpointFailed():
            text = f"checkpoint of step {report.step} failed ({report.stage}): {report.error}"
            state.failed_save = text
            state.tell(now, "CheckpointFailed", text, "Warning")
        case SnapshotsOff():
            state.tell(now, "SnapshotsOff", report.why, "Warning")
        case Evaluated():
            state.evaluation = report
        case Standing():
            _standing(state, report, world, now)
        case Finished():
            _finished(state, report, world, now)
        case RankExit():
            _exit(state, report, world, now)


def _restored(state: State, report: Restored, world: World, now: float) -> None:
    world.restored[report.rank] = report
    state.started = True
    if report.rank != 0:
        return
    state.resumed.append((report.generation, report.step))
    if report.fallen:
        state.tell(now, "SnapshotPassedOver", f"the state comes from {report.rung}: {report.fallen}", "Warning")
    state.account.restored(world.before is None, report.seconds, now)
    lost = state.recoveries.restored(report, world.before)
    if world.before is not None and lost:
        state.account.lost(lost, lost * world.before.step_seconds)
    state.committed = LastCommit(report.step, world.before.time if world.before else state.wall(now))
    for skipped in report.skipped:
        state.tell(now, "CheckpointCorrupt", f"{skipped.path} was passed over: {skipped.why}", "Warning")


def _progress(state: State, report: Progress, world: World, now: float) -> None:
    world.pace.note(report.rank, report.compute_seconds)
    if state.committed is None or report.step > state.committed.step:
        step_seconds = state.committed.step_seconds if state.committed else 0.0
        state.committed = LastCommit(report.step, report.time, world.step_seconds(report) or step_seconds)
    if world.first_commit is None:
        world.first_commit = report
        _tell_recovery(state, report, world, now)
    if report.rank == 0 and (world.progress is None or report.step >= world.progress.step):
        _tell_skipped(state, report, world, now)
        state.account.progress(report.seconds, now)
        world.progress = state.progress = report


def _tell_skipped(state: State, report: Progress, world: World, now: float) -> None:
    before = world.progress.skipped if world.progress else 0
    if report.skipped > before:
        since = f"of generation {world.number} were left out by step {report.step}"
        text = f"{report.skipped} updates {since}: loss or gradients were not finite"
        state.journal.tell_rarely(state.wall(now), "NonFiniteLoss", text, "Warning")


def _tell_recovery(state: State, report: Progress, world: World, now: float) -> None:
    done = state.recoveries.first_step(report, world.before)
    if done is None:
        return
    planned = done.cause in ("resize", "preemption")
    lost = "" if planned else f", {done.lost_steps or 0} steps lost"
    how = f"{done.world_before} -> {done.world_after} ranks from {done.rung}"
    down = f"{done.down_seconds or 0:.1f} s down"
    text = f"training goes on: {how}, resumed from step {done.resumed_from_step}, {down}{lost}"
    state.tell(now, "Resized" if planned else "Recovered", text)


def _finished(state: State, report: Finished, world: World, now: float) -> None:
    world.finished[report.rank] = report
    if report.kept is not None:
        world.kept[report.rank] = report.kept
    # A program that was asked to end by a signal, and does so in order, has not done its work.
    if world.ended and world.broken is None and all(end.reason == "completed" for end in world.finished.values()):
        text = f"trained {report.step} steps"
        state.tell(now, "Completed", text)
        state.conclude(Verdict(outcome="completed", message=text))


def _standing(state: State, report: Standing, world: World, now: float) -> None:
    """A rank came out of its collectives; it may be the first to tell that the world is broken."""
    world.kept[report.rank] = report.kept
    if world.broken is None:
        place = world.record.place_of_rank(report.rank)
        message = f"rank {report.rank} on {place.pod if place else '?'} lost a connection to its peers"
        world.broken = Break(now, "infrastructure", message, place, provisional=True)
        state.lose_the_missed(now)


def _exit(state: State, report: RankExit, world: World, now: float) -> None:
    """The first cause counts; the `peer` ends that follow it, or precede it by a moment, don't."""
    world.kept.pop(report.rank, None)
    if report.rank in world.exits:
        return
    world.exits[report.rank] = report
    if world.settled:
        return
    if world.broken is not None and not (world.broken.provisional and report.cause != "peer"):
        return
    place = world.record.place_of_rank(report.rank)
    message = describe(report, place.pod if place else "")
    if report.cause != "peer":
        world.broken = Break(now, "application", message, place, exit=report)
        return
    message = f"a connection between ranks failed: {message}"
    world.broken = Break(now, "infrastructure", message, place, exit=report, provisional=True)
    state.lose_the_missed(now)
