"""Spans, and the request that exports them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from regroup_trainer.system.spans import (
    MOST_ATTRIBUTES,
    MOST_SPANS,
    ROOT,
    TEXT_CHARACTERS,
    Span,
    Value,
    export_request,
    span_id,
    trace_id,
)
from tests.support.otlp_receiver import parse_request, paths_of, seconds_of, spans_in, values_of

TRACE = trace_id("uid-1", "1.2")
MOST_BYTES = MOST_SPANS * (MOST_ATTRIBUTES + 4) * 13 * TEXT_CHARACTERS
"""A character takes twelve bytes at most, as two escapes, and names of fields some more."""
values = st.one_of(st.text(), st.integers(), st.floats(), st.booleans())
spans = st.builds(
    Span,
    trace=st.just(TRACE),
    path=st.text(),
    name=st.text(),
    start=st.floats(),
    end=st.floats(),
    attributes=st.dictionaries(st.text(), values),
    error=st.text(),
)


@given(st.lists(spans, max_size=4), st.dictionaries(st.text(), values, max_size=3))
def test_whatever_spans_hold_a_request_is_valid_and_bounded(
    given: list[Span], resource: dict[str, str | int | float | bool]
) -> None:
    body = export_request(resource, given)
    assert len(body) < MOST_BYTES
    shown = spans_in(parse_request(body))
    assert len(shown) == len(given)
    assert all(0 <= one.start_time_unix_nano <= one.end_time_unix_nano < 2**63 for one in shown)


def test_too_many_spans_and_too_long_ones_are_cut() -> None:
    facts = {f"{number}{'k' * 999}": "\x00" * 999 for number in range(MOST_ATTRIBUTES + 3)}
    span = Span(TRACE, ROOT, "n" * 999, 1.0, 2.0, facts, "e" * 999)
    body = export_request({}, [span] * (MOST_SPANS + 3))
    assert len(body) < MOST_BYTES
    shown = spans_in(parse_request(body))
    assert (len(shown), len(shown[0].attributes)) == (MOST_SPANS, MOST_ATTRIBUTES)
    assert len(shown[0].name) == len(shown[0].status.message) == TEXT_CHARACTERS


def test_a_span_says_what_took_how_long_and_for_what_it_is_a_part() -> None:
    facts: dict[str, Value] = {
        "steps": 3,
        "seconds": 0.5,
        "where": "w0",
        "planned": False,
        "odd": math.nan,
    }
    given = [
        Span(TRACE, ROOT, "recovery", 1_700_000_000.0, 1_700_000_003.5, facts),
        Span(TRACE, "restore", "restore", 1_700_000_001.0, 1_700_000_003.0),
        Span(TRACE, "restore/load", "load", 1_700_000_002.0, 1_700_000_003.0, error="it broke"),
    ]
    request = parse_request(export_request({"service.name": "regroup"}, given))
    assert values_of(request.resource_spans[0].resource.attributes) == {"service.name": "regroup"}
    shown = spans_in(request)
    assert paths_of(shown) == {"recovery", "recovery/restore", "recovery/restore/load"}
    assert [seconds_of(span) for span in shown] == [3.5, 2.0, 1.0]
    assert values_of(shown[0].attributes) == {**facts, "odd": "nan"}
    assert (shown[0].status.code, shown[2].status.code) == (0, 2)
    assert shown[2].status.message == "it broke"


def test_who_knows_what_a_trace_is_about_comes_to_the_same_ids() -> None:
    assert trace_id("uid-1", "1.2") == TRACE != trace_id("uid-1", "1.3")
    assert trace_id("uid-1", "1.2") != trace_id("uid-11", ".2")
    assert span_id(TRACE, ROOT) == Span(TRACE, "restore", "restore", 0, 0).parent
    assert span_id(TRACE, "a") != span_id(TRACE, "b")
