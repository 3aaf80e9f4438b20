"""Books the time of a job that no rank reports. Pure."""

from __future__ import annotations

from regroup_trainer.coordinator.coordinator_state import State
from regroup_trainer.coordinator.current_generation import CurrentGeneration
from regroup_trainer.coordinator.restart_budget import PROVEN_SECONDS


def book(state: State, now: float) -> None:
    """Book what has passed: without a generation, in one whose program reports no steps, and in one
    that stands still. These may last long, and may end with the job or with this process.
    """
    current = state.current
    if current is None or current.over:
        book_wait(state, now)
    elif current.alive and current.stall is not None:
        state.account.stand_still(now, state.members.ranks)
    elif current.alive:
        _book_program(state, current, now)


def book_wait(state: State, now: float) -> None:
    """Book the time without a generation. Call it too where one ends, and with it the job."""
    if state.current is not None:
        _book_program(state, state.current, now)
    phase = "pending" if state.current is None else "idle"
    state.account.spend(phase, now, state.members.ranks)


def _book_program(state: State, current: CurrentGeneration, now: float) -> None:
    """Book the time of a program that reports no steps as steps: nobody else knows what it does.

    One that reports its first step soon has started up until then, and one that fails before that
    has not worked. So nothing is booked until it is clear.
    """
    if not _is_silent(state, current):
        return
    until = now
    if current.failure is not None:
        until = current.failure.time
    elif current.ended and current.left_at is not None:
        until = current.left_at
    if current.adopted or current.ended or until - current.begun >= PROVEN_SECONDS:
        state.account.spend("step", until, state.members.ranks, current.world_size)


def _is_silent(state: State, current: CurrentGeneration) -> bool:
    """Whether its program reports no steps, as far as is known, and does not wait for a volume with
    a Session.
    """
    has_session = state.resumed or current.record.restored_from in ("Peers", "Snapshot")
    return current.non_reporting and not has_session and state.volume.for_ranks is None
