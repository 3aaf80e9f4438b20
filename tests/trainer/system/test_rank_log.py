"""What Regroup writes in the process of a rank, and how an agent passes it on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from regroup_trainer.agent.rank_output import Lines
from regroup_trainer.system import rank_log
from regroup_trainer.system.log_lines import Subject

ABOUT = Subject("team", "gpt", "1.2", rank="3")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    rank_log.log.handlers[0].setFormatter(None)


def written(capsys: pytest.CaptureFixture[str], form: str | None) -> str:
    """A line of a rank of the job."""
    rank_log.begin(form).subject = lambda: ABOUT
    rank_log.log.warning("checkpoint of step %d failed", 5)
    return capsys.readouterr().err


def passed_on(text: str) -> str:
    """What the agent of rank 3 makes of it."""
    return Lines(lambda: b"rank 3: ").feed(text.encode(), 0.0).decode()


def test_a_line_of_text_has_job_and_generation_behind_the_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = passed_on(written(capsys, "text"))
    assert line.startswith("rank 3: ")
    assert line.endswith(" WARNING team/gpt 1.2: checkpoint of step 5 failed\n")


def test_a_line_of_json_is_an_object_also_where_the_agent_has_passed_it_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = json.loads(passed_on(written(capsys, "json")))
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
    rank_log.log.info("completed step %d", 7)
    assert capsys.readouterr().err == "completed step 7\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_explains_the_end_of_a_rank_has_the_messages_alone(
    capsys: pytest.CaptureFixture[str], form: str
) -> None:
    text = f"hello\n{written(capsys, form)}ValueError: no\n"
    plain = "hello\ncheckpoint of step 5 failed\nValueError: no\n"
    assert rank_log.without_stamps(text) == plain
