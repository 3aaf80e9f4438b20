"""The pause after failures in a row."""

from __future__ import annotations

from regroup_trainer.system.backoff import MOST_PATIENCE, Patience, backoff_seconds, retry_seconds


def test_pauses_double_up_to_the_longest() -> None:
    assert [backoff_seconds(n, 1, 10) for n in range(1, 8)] == [0, 1, 2, 4, 8, 10, 10]
    assert [retry_seconds(n, 1, 10) for n in range(7)] == [0, 1, 2, 4, 8, 10, 10]


def test_patience_doubles_with_each_late_answer_and_ends_with_one_in_time() -> None:
    patience = Patience()
    factors = []
    for _ in range(5):
        factors.append(patience.factor)
        patience.note(late=True)
    assert factors == [1.0, 2.0, 4.0, MOST_PATIENCE, MOST_PATIENCE]
    patience.note(late=False)
    assert patience.factor == 1.0
