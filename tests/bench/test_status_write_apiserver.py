"""The benchmark of a status write runs on a real API server."""

from __future__ import annotations

import pytest

from bench.status_write import QUICK_CASES, SUBJECTS, UNITS, definition, measure

pytestmark = pytest.mark.apiserver


def test_a_write_is_measured() -> None:
    found = measure(QUICK_CASES[0], "without-rules")
    assert found.keys() == UNITS.keys()
    assert found["api_server_ms"]


def test_each_subject_has_another_definition() -> None:
    made = [definition(subject) for subject in SUBJECTS]
    assert all(made.count(each) == 1 for each in made)
