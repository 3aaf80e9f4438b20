"""The benchmark of a coordinator's size: its figures are those of a course of simulated agents."""

from __future__ import annotations

import pytest

from bench.coordinator_size import CASES, UNITS, figures, measure, plan, size_of
from bench.scale.settings import UNITS as FOUND
from bench.scale.settings import ScaleSize


def test_each_figure_is_one_of_the_course_and_a_share_of_a_core_is_in_millicores() -> None:
    found = figures(dict.fromkeys(FOUND, 7.0))
    assert found == {**dict.fromkeys(UNITS, 7.0), "training_millicores": 70.0}


def test_a_course_that_ended_early_has_the_figures_that_came() -> None:
    found = figures({"formed": 1.0, "rss_mb": 60.0})
    assert found == {**dict.fromkeys(UNITS), "rss_mb": 60.0}


def test_a_case_says_how_many_agents_and_ranks_there_are() -> None:
    assert size_of(CASES[-1]) == ScaleSize(1024, 8)
    (quick,) = plan(quick=True).cases
    assert (size_of(quick).agents, size_of(quick).ranks) == (8, 1)
    assert size_of(quick).steady_seconds < size_of("8x1").steady_seconds


@pytest.mark.long
def test_a_quick_run_measures_everything() -> None:
    values = measure("3x2-quick", "regroup")
    assert set(values) == set(UNITS)
    resident, peak = values["rss_mb"], values["rss_peak_mb"]
    assert resident is not None
    assert peak is not None
    assert 20 < resident <= peak < 256
