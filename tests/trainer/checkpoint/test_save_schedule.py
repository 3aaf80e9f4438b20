"""When to save."""

from __future__ import annotations

from regroup_trainer.checkpoint.save_schedule import SaveTimer, due_by_steps
from regroup_trainer.protocol.config import CheckpointPolicy


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_timer_is_due_after_its_interval_and_starts_anew_after_a_save() -> None:
    clock = Clock()
    timer = SaveTimer(CheckpointPolicy(interval_seconds=10), now=clock)
    assert not timer.due()
    clock.now = 10.0
    assert timer.due()
    timer.restart()
    assert not timer.due()


def test_an_interval_in_steps_needs_no_clock() -> None:
    clock, policy = Clock(), CheckpointPolicy(interval_steps=4)
    timer = SaveTimer(policy, now=clock)
    clock.now = 1e9
    assert not timer.due()
    assert [step for step in range(1, 10) if due_by_steps(policy, step)] == [4, 8]
    assert not due_by_steps(CheckpointPolicy(), 4)
