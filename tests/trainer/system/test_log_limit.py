"""What others can make a process log is bounded."""

from __future__ import annotations

import logging

from regroup_trainer.system.log_limit import MOST_RECORDS, PERIOD_SECONDS, LogLimit


def record(text: str, at: float, *values: object) -> logging.LogRecord:
    made = logging.LogRecord("server", logging.WARNING, __file__, 1, text, values, None)
    made.created = at
    return made


def test_few_records_of_a_kind_pass_and_the_next_one_says_how_many_did_not() -> None:
    limit = LogLimit()
    passed = [limit.filter(record("refused %s", 100.0 + n / 1000, n)) for n in range(1000)]
    assert passed.count(True) == MOST_RECORDS
    assert limit.filter(record("something else", 101.0))
    later = record("refused %s", 100.0 + PERIOD_SECONDS, "x")
    assert limit.filter(later)
    left_out = 1000 - MOST_RECORDS
    assert later.getMessage() == f"refused x (and {left_out} more of this kind, left out)"
    next_period = record("refused %s", 100.0 + 2 * PERIOD_SECONDS, "y")
    assert limit.filter(next_period)
    assert next_period.getMessage() == "refused y"


def test_kinds_are_bounded_too() -> None:
    limit = LogLimit()
    passed = [limit.filter(record(f"made up {n}", 100.0)) for n in range(10_000)]
    assert passed.count(True) < 200


def test_a_clock_that_goes_back_silences_no_kind() -> None:
    limit = LogLimit()
    for _ in range(2 * MOST_RECORDS):
        limit.filter(record("refused %s", 10_000.0, "x"))
    assert limit.filter(record("refused %s", 100.0, "y"))
