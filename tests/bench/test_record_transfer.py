"""The benchmark of records and reports measures all of its table, and what agents send."""

from __future__ import annotations

from bench.record_transfer import QUICK_CASES, UNITS, applied, begin, measure, unpacked
from tests.support.large_records import pieces_of, with_replacements


def test_each_figure_of_the_table_is_measured() -> None:
    found = {name: value for case in QUICK_CASES for name, value in measure(case, "").items()}
    assert found.keys() == UNITS.keys()
    assert (found["together_bytes"] or 0) < (found["single_bytes"] or 0)


def test_both_ways_lead_to_the_record() -> None:
    parent, record = with_replacements(20, 2)
    assert applied(parent, begin(parent, record)) == record
    assert unpacked(record.number, list(pieces_of(record))) == record
