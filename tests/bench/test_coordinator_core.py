"""The benchmark of the coordinator's core measures every wave that its table names."""

from __future__ import annotations

from bench.coordinator_core import measure, plan


def test_each_figure_of_the_table_is_measured() -> None:
    found = measure("4x2", "regroup")
    assert found.keys() >= plan(quick=True).units.keys()
    assert all(found.values())
