"""When memory snapshots are due."""

from __future__ import annotations

from regroup_trainer.snapshots.snapshot_schedule import SnapshotTimer


def taken(wanted: int | None, steps: range, step_seconds: float) -> list[int]:
    """The steps after which snapshots are taken, one every `step_seconds`."""
    now = [0.0]
    timer, found = SnapshotTimer(wanted, steps.start, lambda: now[0]), []
    for step in steps[1:]:
        now[0] += step_seconds
        if timer.due(step):
            timer.restart(step)
            found.append(step)
    return found


def test_slow_steps_have_one_at_every_tenth() -> None:
    assert taken(None, range(3, 45), 0.5) == [10, 20, 30, 40]


def test_quick_steps_have_one_every_two_seconds() -> None:
    assert taken(None, range(300), 1 / 64) == [10, 138, 266]


def test_a_number_of_steps_that_somebody_asked_for_is_kept() -> None:
    assert taken(4, range(18), 0.1) == [4, 8, 12, 16]


def test_steps_of_milliseconds_have_ten_a_second() -> None:
    assert taken(1, range(300), 1 / 1024) == [1, 104, 207]


def test_one_that_could_not_be_taken_is_made_up_for() -> None:
    timer = SnapshotTimer(10, 0)
    assert timer.due(13)
    timer.restart(13)
    assert not timer.due(19)
