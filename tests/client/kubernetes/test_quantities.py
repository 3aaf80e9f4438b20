"""Times and sizes as kubectl writes them."""

from __future__ import annotations

import pytest

from regroup.kubernetes.quantities import count, duration, percent, short_seconds, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-5, "0s"),
        (119, "119s"),
        (120, "2m"),
        (125, "2m5s"),
        (600, "10m"),
        (3 * 3600, "3h"),
        (3 * 3600 + 300, "3h5m"),
        (9 * 3600 + 300, "9h"),
        (2 * 86400, "2d"),
        (2 * 86400 + 7200, "2d2h"),
        (9 * 86400 + 7200, "9d"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_fractions_of_a_second() -> None:
    assert [short_seconds(value) for value in (None, 0.163, 2.34, 61)] == [
        "-",
        "0.16s",
        "2.3s",
        "61s",
    ]


def test_sizes() -> None:
    assert [size(value) for value in (None, 12, 2048, 3 << 30)] == [
        "-",
        "12 B",
        "2.0 KiB",
        "3.0 GiB",
    ]


def test_a_share_of_less_than_all_is_not_a_hundred_percent() -> None:
    assert [percent(value) for value in (1.0, 0.9999, 0.5, 0.0)] == ["100%", "99.9%", "50%", "0%"]


def test_counts() -> None:
    assert (count(1, "step"), count(1200, "step")) == ("1 step", "1,200 steps")
