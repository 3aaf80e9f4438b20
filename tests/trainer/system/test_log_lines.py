"""The lines of a log: what each says, and that others cannot cause too many."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator

import pytest

from regroup_trainer.agent.rank_output import Lines
from regroup_trainer.system.log_lines import (
    MOST_RECORDS,
    PERIOD_SECONDS,
    LineFormatter,
    LogLimit,
    Subject,
    begin_rank_log,
    rank_log,
    without_stamps,
)

ABOUT = Subject("team", "gpt", "1.2")
OF_RANK = ABOUT._replace(rank="3")


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


@pytest.fixture(autouse=True)
def _rank_log_as_before() -> Iterator[None]:
    yield
    rank_log.handlers[0].setFormatter(None)


def written_in_rank(capsys: pytest.CaptureFixture[str], form: str | None) -> str:
    """A line of a rank of the job."""
    begin_rank_log(form).subject = lambda: OF_RANK
    rank_log.warning("checkpoint of step %d failed", 5)
    return capsys.readouterr().err


def passed_on(text: str) -> str:
    """What the agent of rank 3 makes of it."""
    return Lines(lambda: b"rank 3: ").feed(text.encode(), 0.0).decode()


def test_a_line_of_text_has_job_and_generation_behind_the_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = passed_on(written_in_rank(capsys, "text"))
    assert line.startswith("rank 3: ")
    assert line.endswith(" WARNING team/gpt 1.2: checkpoint of step 5 failed\n")


def test_a_line_of_json_is_an_object_also_where_the_agent_has_passed_it_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = json.loads(passed_on(written_in_rank(capsys, "json")))
    assert line.items() >= {
        ("level", "WARNING"),
        ("namespace", "team"),
        ("trainingjob", "gpt"),
        ("generation", "1.2"),
        ("rank", "3"),
        ("message", "checkpoint of step 5 failed"),
    }


def test_an_object_that_the_program_writes_is_marked_as_any_line() -> None:
    line = '{"time": "today", "level": "INFO", "logger": "mine", "message": "hello"}\n'
    assert passed_on(line) == f"rank 3: {line}"


def test_outside_of_an_agent_a_line_is_its_message(capsys: pytest.CaptureFixture[str]) -> None:
    rank_log.info("completed step %d", 7)
    assert capsys.readouterr().err == "completed step 7\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_explains_the_end_of_a_rank_has_the_messages_alone(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    text = f"hello\n{written_in_rank(capsys, form)}ValueError: no\n"
    plain = "hello\ncheckpoint of step 5 failed\nValueError: no\n"
    assert without_stamps(text) == plain
