"""The benchmark of heartbeats runs, for each way in which they travel."""

from __future__ import annotations

import pytest

from bench.heartbeat_cost import HELLOS, QUICK_CASES, SUBJECTS, UNITS, measure


@pytest.mark.parametrize("subject", SUBJECTS)
def test_each_way_is_measured(subject: str) -> None:
    found = measure(QUICK_CASES[0], subject)
    assert found.keys() == UNITS.keys()
    assert found["connection_us"]
    assert bool(found["heartbeat_us"]) is (subject != HELLOS)
