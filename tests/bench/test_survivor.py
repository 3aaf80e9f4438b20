"""The rounds of bench/survivor.py; they run on nodes, as those of the recovery benchmark do."""

from __future__ import annotations

import pytest

from bench.survivor import summed_up


def test_a_round_without_recovery_counts_and_has_no_time() -> None:
    found = summed_up(
        [
            {"recovered": 1.0, "down_seconds": 2.0, "lost_steps": 0.0},
            {"recovered": 0.0},
            {"recovered": 1.0, "down_seconds": 3.0, "lost_steps": 1.0},
        ]
    )
    assert found == {
        "rounds": 3.0,
        "recovered": pytest.approx(2 / 3),
        "least_down_seconds": 2.0,
        "down_seconds": 2.5,
        "most_down_seconds": 3.0,
        "lost_steps": 1.0,
    }
