"""What an operators' benchmark has measured stays, whatever ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import harness
from bench.operators import __main__ as operators
from bench.operators.operator_course import UNITS, OperatorOutcome, OperatorSize
from tests.support.kube_api import ROOT

Report = Callable[[str], None]


class Course:
    """Stands for the measurement of a subject."""

    def __init__(self) -> None:
        self.seconds = 1.0
        self.ends_early = ""
        self.is_cut_short = ""

    async def measure(self, _size: OperatorSize, subject: str, _report: Report) -> OperatorOutcome:
        if subject == self.is_cut_short:
            raise KeyboardInterrupt
        found: dict[str, float | None] = {"total_seconds": self.seconds}
        return OperatorOutcome(found, {}, is_whole=subject != self.ends_early)


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


def test_a_quick_run_leaves_the_results_alone_unless_it_is_given_a_folder(
    tmp_path: Path, course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "QUICK_RESULTS", tmp_path / "quick")
    run(tmp_path, "--case", "100x8", "--subject", "floor")
    course.seconds = 2.0
    assert CliRunner().invoke(operators.main, ["--quick", "--subject", "floor"]).exit_code == 0
    assert written(tmp_path) == {("100x8", "floor"): 1.0}
    assert written(tmp_path / "quick") == {("1x8", "floor"): 2.0}


QUICK_SECONDS = 900


@pytest.mark.apiserver
@pytest.mark.long
@pytest.mark.timeout(QUICK_SECONDS + 60)
def test_a_quick_run_on_a_real_control_plane_has_each_figure(
    tmp_path: Path,
) -> None:
    subjects = ("--subject", "regroup", "--subject", "floor")
    command = [sys.executable, "-m", "bench.operators", "--quick", *subjects]
    done = subprocess.run(
        [*command, "--output", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=QUICK_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "operator.json").read_text())["rows"]
    found = {(row["subject"], row["metric"]): row["median"] for row in rows}
    verbs = {f"api_{verb}_writes_per_job" for verb in ("update", "patch", "delete")}
    missing = {metric for metric in UNITS if ("regroup", metric) not in found}
    assert missing <= {"sync_status_writes_per_job", *verbs}, "a job alone has no other beside it"
    assert found["floor", "total_seconds"] > 0
    assert found["regroup", "unreported_losses"] == 0
    assert found["regroup", "sync_status_losses"] == 0
