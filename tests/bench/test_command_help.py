"""The benchmark of the command's start measures what it says."""

from __future__ import annotations

import subprocess

import pytest

from bench.command_help import UNITS, measure, plan, seconds_of


def test_a_run_has_the_time_of_the_help_and_how_much_more_that_is() -> None:
    (case,), (subject,) = plan(quick=True).cases, plan(quick=True).subjects
    values = measure(case, subject)
    assert values.keys() == UNITS.keys()
    assert values["help_seconds"] is not None
    assert values["bare_seconds"] is not None
    assert values["ratio"] == values["help_seconds"] / values["bare_seconds"]


def test_a_help_that_fails_is_no_figure() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        seconds_of("raise SystemExit(1)")
