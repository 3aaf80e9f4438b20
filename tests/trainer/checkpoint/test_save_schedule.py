"""When to save."""

from __future__ import annotations

from regroup_trainer.checkpoint.save_schedule import SaveTimer, due_by_steps, missed_by_steps
from regroup_trainer.protocol.config import CheckpointPolicy


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


EVERY_TEN_SECONDS = CheckpointPolicy(interval_seconds=10)
EVERY_FOUR_STEPS = CheckpointPolicy(interval_steps=4)


def test_the_timer_is_due_after_its_interval_and_starts_anew_after_a_save() -> None:
    clock = Clock()
    timer = SaveTimer(now=clock)
    assert not timer.due(EVERY_TEN_SECONDS)
    clock.now = 10.0
    assert timer.due(EVERY_TEN_SECONDS)
    timer.restart()
    assert not timer.due(EVERY_TEN_SECONDS)


def test_an_interval_in_steps_needs_no_clock() -> None:
    clock, policy = Clock(), EVERY_FOUR_STEPS
    timer = SaveTimer(now=clock)
    clock.now = 1e9
    assert not timer.due(policy)
    assert [step for step in range(1, 10) if due_by_steps(policy, step)] == [4, 8]
    assert not due_by_steps(EVERY_TEN_SECONDS, 4)


def test_a_save_is_missed_when_its_step_was_passed_without_a_checkpoint() -> None:
    assert [missed_by_steps(EVERY_FOUR_STEPS, 4, step) for step in (4, 7, 8, 11)] == [
        False,
        False,
        True,
        True,
    ]
    assert not missed_by_steps(EVERY_TEN_SECONDS, 4, 100)


def pauses(
    timer: SaveTimer, clock: Clock, saves: int, blocking: float, lasting: float = 0.0
) -> list[float]:
    """Seconds from each failure until a save is due again, for failures in a row."""
    found = []
    for _ in range(saves):
        timer.restart()
        clock.now += lasting
        timer.note_failure(blocking)
        failed = clock.now
        while not timer.due(EVERY_FOUR_STEPS):
            clock.now += 1.0
        found.append(clock.now - failed)
    return found


def test_a_save_that_failed_is_tried_again_soon_and_ever_more_rarely() -> None:
    clock = Clock()
    timer = SaveTimer(now=clock)
    assert pauses(timer, clock, 6, blocking=0.01) == [5, 10, 20, 40, 60, 60]
    timer.restart()
    assert not timer.due(EVERY_FOUR_STEPS)
    timer.note_success()
    clock.now += 1e9
    assert not timer.due(EVERY_FOUR_STEPS)
    assert pauses(timer, clock, 1, blocking=0.01) == [5]


def test_saves_that_are_tried_again_take_a_tenth_of_the_time_at_most() -> None:
    clock = Clock()
    assert pauses(SaveTimer(now=clock), clock, 2, blocking=9.0) == [90, 90]


def test_a_volume_that_refuses_for_ever_is_written_to_a_fifth_of_the_time_at_most() -> None:
    """One rank may be refused while all others write their parts. A save that hung is tried again
    at once: the volume may have come back.
    """
    clock = Clock()
    timer = SaveTimer(now=clock)
    assert pauses(timer, clock, 3, blocking=0.0, lasting=30.0) == [5, 150, 150]


def test_a_save_whose_end_is_unknown_is_tried_again_by_the_next_generation() -> None:
    clock = Clock()
    timer = SaveTimer(now=clock)
    timer.restart()
    clock.now = 100.0
    assert not timer.due(EVERY_FOUR_STEPS)
    timer.resume()
    assert not timer.due(EVERY_FOUR_STEPS)
    clock.now = 105.0
    assert timer.due(EVERY_FOUR_STEPS)
    timer.restart()
    timer.note_success()
    timer.resume()
    clock.now = 1e9
    assert not timer.due(EVERY_FOUR_STEPS)
