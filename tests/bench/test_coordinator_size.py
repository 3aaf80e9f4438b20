"""The benchmark of a coordinator's size, at its smallest."""

from __future__ import annotations

from bench.coordinator_size import UNITS, measure


def test_a_quick_run_measures_everything() -> None:
    values = measure("3x2-quick", "regroup")
    assert set(values) == set(UNITS)
    resident, peak = values["rss_mb"], values["rss_peak_mb"]
    assert resident is not None
    assert peak is not None
    assert 20 < resident <= peak < 256
