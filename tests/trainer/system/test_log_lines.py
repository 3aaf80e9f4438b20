"""The lines of a log: what each says, and that others cannot cause too many."""

from __future__ import annotations

import json
import logging
import sys

from regroup_trainer.system.log_lines import (
    MOST_RECORDS,
    PERIOD_SECONDS,
    LineFormatter,
    LogLimit,
    Subject,
)

ABOUT = Subject("team", "gpt", "1.2")


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


def line(text: str, about: Subject = ABOUT, *, as_json: bool = False, **options: bool) -> str:
    lines = LineFormatter(as_json=as_json, with_logger=options.get("with_logger", False))
    lines.subject = lambda: about
    made = record(text, 1_767_225_600.5, *["two\nlines"] * text.count("%s"))
    return lines.format(made)


def test_each_line_names_job_and_generation() -> None:
    assert line("saved %s").endswith(" WARNING team/gpt 1.2: saved two\nlines")
    assert line("saved", Subject("team", "gpt")).endswith(" WARNING team/gpt: saved")
    assert line("saved", Subject()).endswith(" WARNING saved")
    assert line("team/gpt: saved", with_logger=True).endswith(" server 1.2: team/gpt: saved")
    assert line("saved", Subject(), with_logger=True).endswith(" WARNING server: saved")


def test_a_line_of_json_is_one_object_with_what_is_known() -> None:
    written = line("saved %s", as_json=True)
    assert "\n" not in written
    about = {"namespace": "team", "trainingjob": "gpt", "generation": "1.2"}
    assert json.loads(written) == {
        "time": "2026-01-01T00:00:00.500+00:00",
        "level": "WARNING",
        "logger": "server",
        **about,
        "message": "saved two\nlines",
    }
    assert not json.loads(line("saved", Subject(), as_json=True)).keys() & about.keys()


def test_a_traceback_is_part_of_its_line_of_json() -> None:
    lines = LineFormatter(as_json=True, with_logger=False)
    failed = record("failed", 0.0)
    try:
        raise ValueError("no \ud800 data")
    except ValueError:
        failed.exc_info = sys.exc_info()
    assert json.loads(lines.format(failed))["traceback"].endswith("ValueError: no \ud800 data")
