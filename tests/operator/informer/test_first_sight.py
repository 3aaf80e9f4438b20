"""How long something is seen to be so, in virtual time."""

from __future__ import annotations

from regroup_operator.informer.first_sight import FirstSight

ONE, OTHER = ("a", "one"), ("a", "other")


def test_a_fact_is_timed_from_the_first_look_that_shows_it_until_one_does_not() -> None:
    now = 100.0
    sight = FirstSight(lambda: now)
    assert sight.look(ONE, ["x"]) == {"x": 0.0}
    now = 103.0
    assert sight.look(ONE, ["x", "y"]) == {"x": 3.0, "y": 0.0}
    assert sight.look(OTHER, ["x"]) == {"x": 0.0}, "jobs are apart"
    now = 104.0
    assert sight.look(ONE, ["y"]) == {"y": 1.0}
    assert sight.look(ONE, ["x", "y"]) == {"x": 0.0, "y": 1.0}


def test_of_a_job_that_is_gone_nothing_is_kept() -> None:
    now = 100.0
    sight = FirstSight(lambda: now)
    sight.look(ONE, ["x"])
    now = 103.0
    sight.forget(ONE)
    assert sight.look(ONE, ["x"]) == {"x": 0.0}
    assert sight.look(ONE, []) == {}
