"""The pause after failures in a row."""

from __future__ import annotations

from regroup_trainer.protocol.backoff import backoff_seconds


def test_pauses_double_up_to_the_longest() -> None:
    assert [backoff_seconds(n, 1, 10) for n in range(1, 8)] == [0, 1, 2, 4, 8, 10, 10]
