"""What a kill cost, read from the steps around it."""

from __future__ import annotations

from bench.outcome import Step, outcome


def steps(world: str, first: int, last: int, start: float, pace: float = 0.1) -> list[Step]:
    return [Step(world, step, start + pace * (step - first)) for step in range(first, last + 1)]


def test_a_new_world_begins_anew_from_the_saved_step() -> None:
    course = [*steps("a", 1, 30, 0.0), *steps("b", 21, 45, 5.0)]
    found = outcome(course, killed=2.95, enough=20)
    assert found == {"recovered": 1.0, "down_seconds": 2.05, "lost_steps": 10.0}


def test_a_step_that_was_under_way_does_not_end_the_down_time() -> None:
    course = [*steps("a", 1, 31, 0.0), *steps("b", 21, 45, 5.0)]
    found = outcome(course, killed=2.95, enough=20)
    assert found is not None
    assert found["down_seconds"] == 2.05


def test_where_the_world_lives_on_nothing_is_lost() -> None:
    found = outcome(steps("a", 1, 60, 0.0), killed=2.95, enough=20)
    assert found is not None
    assert found["lost_steps"] == 0
    assert found["down_seconds"] is not None
    assert found["down_seconds"] < 0.11


def test_too_few_steps_are_no_recovery() -> None:
    assert outcome([*steps("a", 1, 30, 0.0), *steps("b", 21, 25, 5.0)], killed=2.95, enough=20) is None
