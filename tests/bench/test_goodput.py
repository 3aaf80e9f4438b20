"""The faults of the goodput benchmark; it runs on nodes, as the recovery benchmark does."""

from __future__ import annotations

import itertools

from bench.goodput import COURSES, KINDS, FaultCourse, settings, trace


def test_a_seed_has_one_trace() -> None:
    course = COURSES["mtbf-60"]
    assert list(trace(1, course)) == list(trace(1, course))
    assert list(trace(1, course)) != list(trace(2, course))


def test_faults_are_as_frequent_as_the_mean_says_and_of_all_kinds() -> None:
    failures = list(trace(0, FaultCourse(60.0, 60_000.0)))
    assert 900 < len(failures) < 1100
    assert {failure.kind for failure in failures} == set(KINDS)
    assert all(before.at < after.at < 60_000.0 for before, after in itertools.pairwise(failures))


def test_a_row_lists_its_faults() -> None:
    first = next(trace(1, COURSES["mtbf-60"]))
    assert f"{first.kind} {first.worker} at {first.at:.0f} s" in settings("mtbf-60", "regroup")
