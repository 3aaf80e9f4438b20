"""What a fault cost, read from the steps around it."""

from __future__ import annotations

import pytest

from bench.outcome import (
    Fault,
    Step,
    after_new_generation,
    final,
    loss_difference,
    useful_seconds,
    within_same_generation,
)


def steps(generation: str, first: int, last: int, start: float, pace: float = 0.1) -> list[Step]:
    return [
        Step(generation, step, start + pace * (step - first), loss=10.0 / step)
        for step in range(first, last + 1)
    ]


LOSSES = {step: 10.0 / step for step in range(1, 100)}


def test_a_new_generation_begins_anew_from_the_saved_step() -> None:
    course = [*steps("a", 1, 30, 0.0), *steps("b", 21, 45, 5.0)]
    found = after_new_generation(course, Fault(2.95), enough=20)
    assert found == {"recovered": 1.0, "down_seconds": 2.05, "lost_steps": 10.0}


def test_a_step_that_was_under_way_neither_ends_the_down_time_nor_is_forgotten() -> None:
    course = [*steps("a", 1, 31, 0.0), *steps("b", 21, 45, 5.0)]
    found = after_new_generation(course, Fault(2.95), enough=20)
    assert found == {"recovered": 1.0, "down_seconds": 2.05, "lost_steps": 11.0}


def test_a_generation_that_goes_on_from_the_last_step_has_lost_none() -> None:
    found = after_new_generation(
        [*steps("a", 1, 30, 0.0), *steps("b", 31, 55, 3.5)], Fault(2.95), enough=20
    )
    assert found is not None
    assert found["lost_steps"] == 0


def test_a_planned_change_pauses_from_the_last_step_of_the_old_generation() -> None:
    course = [*steps("a", 1, 60, 0.0), *steps("b", 61, 90, 6.2)]
    found = after_new_generation(course, Fault(2.0, planned=True), enough=20)
    assert found is not None
    assert found["down_seconds"] == pytest.approx(0.3)


def test_too_few_steps_are_no_recovery() -> None:
    assert (
        after_new_generation(
            [*steps("a", 1, 30, 0.0), *steps("b", 21, 25, 5.0)], Fault(2.95), enough=20
        )
        is None
    )


def test_where_the_generation_lives_on_its_longest_pause_counts() -> None:
    course = [*steps("a", 1, 50, 0.0), *steps("a", 51, 80, 5.7)]
    found = within_same_generation(course, Fault(2.95), until=8.0, enough=20)
    assert found is not None
    assert found["down_seconds"] == pytest.approx(0.7)


def test_neither_a_resize_nor_a_save_before_the_fault_makes_a_pause_after_it_usual() -> None:
    first, second = steps("a", 1, 30, 0.0), [*steps("b", 21, 40, 5.0), *steps("b", 41, 50, 7.9)]
    found = within_same_generation(
        [*first, *second, *steps("b", 51, 80, 9.6)], Fault(8.85), until=12.6, enough=20
    )
    assert found is not None
    assert found["down_seconds"] == pytest.approx(0.7)


def test_the_first_steps_of_a_next_generation_do_not_make_the_last_one_live_on() -> None:
    course = [*steps("a", 1, 50, 0.0), *steps("b", 41, 50, 7.0)]
    assert within_same_generation(course, Fault(2.95), until=8.0, enough=20) is None


def test_a_generation_that_stopped_does_not_live_on() -> None:
    assert (
        within_same_generation(steps("a", 1, 60, 0.0), Fault(2.95), until=12.0, enough=20) is None
    )


def test_the_final_history_has_each_step_once() -> None:
    course = [*steps("a", 1, 30, 0.0), *steps("b", 21, 25, 5.0)]
    found = final(course)
    assert sorted(found) == list(range(1, 26))
    assert {found[20].generation, found[21].generation} == {"a", "b"}


def test_a_wrong_result_shows_only_if_it_is_in_the_final_history() -> None:
    undone = [*steps("a", 1, 24, 0.0), Step("a", 25, 2.5, loss=7.0)]
    assert loss_difference([*undone, *steps("b", 21, 45, 5.0)], LOSSES) == 0.0
    assert loss_difference(undone, LOSSES) == pytest.approx(7.0 * 25 / 10 - 1)


def test_steps_beyond_the_undisturbed_run_are_not_compared() -> None:
    assert loss_difference(steps("a", 200, 210, 0.0), LOSSES) is None


def test_useful_is_what_the_final_history_took_but_not_the_pauses() -> None:
    course = [*steps("a", 1, 31, 0.0), *steps("b", 22, 32, 5.0)]
    useful, lost = useful_seconds(course)
    assert useful == pytest.approx(3.0)
    assert lost == 10


def test_a_pause_within_a_generation_is_not_useful() -> None:
    useful, lost = useful_seconds([*steps("a", 1, 11, 0.0), *steps("a", 12, 22, 21.0)])
    assert useful == pytest.approx(2.0 + 0.3)
    assert lost == 0
