"""Numbers as Grafana shows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.picture.units import text, ticks, time_ticks


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "expected"),
    [
        (0.763, "percentunit", 0, "76%"),
        (31812.0, "short", 1, "31.8 K"),
        (12.0, "short", 1, "12"),
        (0.25, "reqps", None, "0.25 req/s"),
        (14_500_000.0, "bytes", 1, "13.8 MiB"),
        (0.0, "s", None, "0 s"),
        (0.9, "s", 1, "900 ms"),
        (5.84, "s", 1, "5.8 s"),
        (90.0, "s", None, "1.5 min"),
        (1.60612, "none", 3, "1.606"),
        (1.60612, "none", None, "1.61"),
        (0.0, "none", None, "0"),
    ],
)
def test_a_value_with_its_unit(
    value: float, unit: str, decimals: int | None, expected: str
) -> None:
    assert text(value, unit, decimals) == expected


@given(low=st.floats(-1e6, 1e6), size=st.floats(1e-3, 1e6))
def test_ticks_cover_the_values_evenly_and_are_few(low: float, size: float) -> None:
    marks = ticks(low, low + size)
    slack = (marks[1] - marks[0]) * 1e-6
    assert marks[0] <= low + slack
    assert marks[-1] >= low + size - slack
    assert 2 <= len(marks) <= 8


@given(start=st.integers(0, 2**31), length=st.integers(10, 10**6), count=st.integers(2, 20))
def test_time_ticks_lie_in_the_window_and_are_few(start: int, length: int, count: int) -> None:
    marks = time_ticks(start, start + length, count)
    assert all(start <= time <= start + length for time, _ in marks)
    assert len(marks) <= count + 1
