"""The benchmark of what coordinator and agents keep: its figures, and a quick run."""

from __future__ import annotations

import pytest

from bench.memory_growth import UNITS, growth, measure


def test_the_growth_is_what_a_hundred_faults_add() -> None:
    assert growth([60.0 + 0.05 * fault for fault in range(100)]) == pytest.approx(5.0)
    assert growth([60.0] * 10) == 0.0


@pytest.mark.long
def test_a_quick_run_measures_everything() -> None:
    values = measure("ranks-killed-quick", "regroup")
    assert set(values) == set(UNITS)
    assert values["faults"] == 3
