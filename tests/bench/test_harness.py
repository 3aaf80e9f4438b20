"""The interface that all benchmarks share."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from bench.harness import Plan, collect, command, kept

UNITS = {"down_seconds": "s", "lost_steps": "steps"}


def plan_of(quick: bool) -> Plan:
    return Plan("example", ("a", "b"), ("regroup", "other"), UNITS, 1 if quick else 3)


def measure(case: str, subject: str) -> dict[str, float | None]:
    return {
        "down_seconds": 1.5 if subject == "regroup" else 3.0,
        "lost_steps": None if case == "b" else 4.0,
    }


def test_subjects_take_turns_in_alternating_order() -> None:
    order = []

    def noted(case: str, subject: str) -> dict[str, float | None]:
        order.append(subject)
        return {"down_seconds": 1.0}

    collect(Plan("example", ("a",), ("regroup", "other"), UNITS, 2), noted, lambda line: None)
    assert order == ["regroup", "other", "other", "regroup"]


def test_the_results_hold_rows_machine_and_versions(tmp_path: Path) -> None:
    done = CliRunner().invoke(command(plan_of, measure), ["--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    document = json.loads((tmp_path / "example.json").read_text())
    assert document["quick"] is False
    assert document["machine"]["cores"] >= 1
    assert "python" in document["versions"]
    expected = {"case": "a", "subject": "regroup", "metric": "down_seconds", "unit": "s"}
    figures = {"min": 1.5, "median": 1.5, "max": 1.5, "runs": 3, "settings": ""}
    assert document["rows"][0] == {**expected, **figures, "date": document["rows"][0]["date"]}


def test_a_case_that_is_measured_anew_leaves_the_results_of_the_others(tmp_path: Path) -> None:
    run = ["--output", str(tmp_path)]
    CliRunner().invoke(command(plan_of, measure), run)
    CliRunner().invoke(
        command(plan_of, lambda _case, _subject: {"down_seconds": 7.0}), [*run, "--case", "b"]
    )
    rows = json.loads((tmp_path / "example.json").read_text())["rows"]
    assert {(row["case"], row["median"]) for row in rows if row["metric"] == "down_seconds"} == {
        ("a", 1.5),
        ("a", 3.0),
        ("b", 7.0),
    }


def test_a_subject_that_is_measured_anew_leaves_the_others_of_its_case(tmp_path: Path) -> None:
    CliRunner().invoke(command(plan_of, measure), ["--output", str(tmp_path)])
    rows = kept(tmp_path / "example.json", "a", "regroup")
    assert {(row.case, row.subject) for row in rows} == {
        ("a", "other"),
        ("b", "regroup"),
        ("b", "other"),
    }
    assert len(kept(tmp_path / "example.json")) == len(rows) + 2


def test_what_there_is_besides_the_rows_goes_to_the_same_folder(tmp_path: Path) -> None:
    def add(folder: Path) -> None:
        (folder / "more.json").write_text("{}")

    CliRunner().invoke(command(plan_of, measure, add), ["--quick", "--output", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {"example.json", "more.json"}


def test_a_metric_without_a_value_has_no_row(tmp_path: Path) -> None:
    CliRunner().invoke(command(plan_of, measure), ["--quick", "--output", str(tmp_path)])
    rows = json.loads((tmp_path / "example.json").read_text())["rows"]
    assert {row["metric"] for row in rows if row["case"] == "b"} == {"down_seconds"}


def test_an_unknown_case_is_refused_with_those_there_are(tmp_path: Path) -> None:
    done = CliRunner().invoke(command(plan_of, measure), ["--case", "c", "--output", str(tmp_path)])
    assert done.exit_code != 0
    assert "there is a, b" in str(done.output) + str(done.exception)
