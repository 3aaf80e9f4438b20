"""What an operators' benchmark has measured stays, whatever ends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import harness
from bench.operators import __main__ as operators
from bench.operators.course import Outcome, Size

Report = Callable[[str], None]


class Course:
    """Stands for the measurement of a subject."""

    def __init__(self) -> None:
        self.seconds = 1.0
        self.ends_early = ""
        self.is_cut_short = ""

    async def measure(self, _size: Size, subject: str, _report: Report) -> Outcome:
        if subject == self.is_cut_short:
            raise KeyboardInterrupt
        found: dict[str, float | None] = {"total_seconds": self.seconds}
        return Outcome(found, {}, is_whole=subject != self.ends_early)


@pytest.fixture
def course(monkeypatch: pytest.MonkeyPatch) -> Course:
    made = Course()
    monkeypatch.setattr(operators, "measure", made.measure)
    monkeypatch.setattr(operators, "_enter_namespace", lambda _subjects: None)
    return made


def run(folder: Path, *arguments: str) -> int:
    done = CliRunner().invoke(operators.main, [*arguments, "--output", str(folder)])
    return done.exit_code


def written(folder: Path) -> dict[tuple[str, str], float]:
    rows = json.loads((folder / "operator.json").read_text())["rows"]
    return {(row["case"], row["subject"]): row["median"] for row in rows}


def test_a_run_that_is_cut_short_leaves_the_subjects_before(tmp_path: Path, course: Course) -> None:
    course.is_cut_short = "floor"
    assert run(tmp_path, "--case", "1x8") != 0
    assert written(tmp_path) == {("1x8", "regroup"): 1.0, ("1x8", "trainer-v2"): 1.0}


def test_a_later_call_adds_its_rows_and_keeps_the_others(tmp_path: Path, course: Course) -> None:
    run(tmp_path, "--case", "100x8", "--subject", "floor")
    course.seconds = 2.0
    run(tmp_path, "--case", "100x8", "--case", "1x8", "--subject", "regroup")
    assert list(written(tmp_path).items()) == [
        (("1x8", "regroup"), 2.0),
        (("100x8", "regroup"), 2.0),
        (("100x8", "floor"), 1.0),
    ]


def test_a_course_that_ends_early_leaves_what_it_has_and_fails(
    tmp_path: Path, course: Course
) -> None:
    course.ends_early = "regroup"
    assert run(tmp_path, "--case", "1x8") == 1
    assert len(written(tmp_path)) == len(operators.ALL)


def test_a_quick_run_keeps_nothing_of_others(tmp_path: Path, course: Course) -> None:
    run(tmp_path, "--case", "100x8", "--subject", "floor")
    assert run(tmp_path, "--quick", "--subject", "floor") == 0
    assert written(tmp_path) == {("1x8", "floor"): 1.0}


def test_a_quick_run_leaves_the_results_alone_unless_it_is_told_where_to_write(
    tmp_path: Path, course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "QUICK_RESULTS", tmp_path / "quick")
    run(tmp_path, "--case", "100x8", "--subject", "floor")
    course.seconds = 2.0
    assert CliRunner().invoke(operators.main, ["--quick", "--subject", "floor"]).exit_code == 0
    assert written(tmp_path) == {("100x8", "floor"): 1.0}
    assert written(tmp_path / "quick") == {("1x8", "floor"): 2.0}
