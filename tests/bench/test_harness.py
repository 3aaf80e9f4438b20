"""The interface that all benchmarks share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import harness
from bench.harness import Goal, Plan, collect, command, rows, table

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
    more = {"date": document["rows"][0]["date"], "goal": "", "verdict": ""}
    assert document["rows"][0] == {**expected, **figures, **more}


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
    run = ["--output", str(tmp_path)]
    CliRunner().invoke(command(plan_of, measure), run)
    anew = command(plan_of, lambda _case, _subject: {"down_seconds": 7.0})
    CliRunner().invoke(anew, [*run, "--case", "b", "--subject", "other"])
    CliRunner().invoke(anew, [*run, "--subject", "other"])
    assert [
        (row["case"], row["subject"], row["median"])
        for row in json.loads((tmp_path / "example.json").read_text())["rows"]
        if row["metric"] == "down_seconds"
    ] == [("a", "regroup", 1.5), ("b", "regroup", 1.5), ("a", "other", 7.0), ("b", "other", 7.0)]


def test_an_interrupted_run_keeps_what_was_measured(tmp_path: Path) -> None:
    def interrupted(case: str, subject: str) -> dict[str, float | None]:
        if subject == "other":
            raise KeyboardInterrupt
        return measure(case, subject)

    CliRunner().invoke(command(plan_of, interrupted), ["--output", str(tmp_path)])
    rows = json.loads((tmp_path / "example.json").read_text())["rows"]
    assert {(row["case"], row["subject"], row["runs"]) for row in rows} == {("a", "regroup", 1)}


def test_nothing_is_added_to_the_figures_of_a_quick_run(tmp_path: Path) -> None:
    run = ["--output", str(tmp_path)]
    CliRunner().invoke(command(plan_of, measure), [*run, "--quick"])
    CliRunner().invoke(command(plan_of, measure), [*run, "--case", "a"])
    rows = json.loads((tmp_path / "example.json").read_text())["rows"]
    assert {row["case"] for row in rows} == {"a"}


@pytest.mark.parametrize(
    ("goal", "value", "other", "expected"),
    [
        (Goal(1.3, times="floor"), 13.0, 10.0, "<= 1.3x floor: met (1.30x)"),
        (Goal(1.3, times="floor"), 14.0, 10.0, "<= 1.3x floor: missed (1.40x)"),
        (Goal(1.3, times="floor"), 14.0, None, "<= 1.3x floor: open"),
        (Goal(0), 0.0, None, "<= 0: met"),
        (Goal(0), None, None, "<= 0: open"),
    ],
)
def test_a_goal_may_be_a_multiple_of_what_another_subject_has(
    goal: Goal, value: float | None, other: float | None, expected: str
) -> None:
    assert goal.judged(value, other) == expected


def test_a_quick_run_leaves_the_results_of_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "QUICK_RESULTS", tmp_path / "quick")
    for quick in ([], ["--quick"]):
        CliRunner().invoke(command(plan_of, measure), quick)
    found = {path: json.loads(path.read_text())["quick"] for path in tmp_path.glob("*/*")}
    assert found == {
        tmp_path / "results/example.json": False,
        tmp_path / "quick/example.json": True,
    }


@pytest.mark.parametrize(
    ("goal", "runs", "shown", "verdict"),
    [
        (Goal(2.0), [1.0, 2.0], "<= 2", "met"),
        (Goal(2.0), [1.0, 1.0, 2.1], "<= 2", "missed"),
        (Goal(1, at_least=True), [1.0, 1.0], ">= 1", "met"),
        (Goal(1, at_least=True), [1.0, 1.0, 0.0], ">= 1", "missed"),
        (Goal(2.0), [1.0, None], "<= 2", "missed"),
    ],
)
def test_a_goal_is_met_when_every_run_reaches_it(
    goal: Goal, runs: list[float | None], shown: str, verdict: str
) -> None:
    plan = Plan(
        "example",
        ("a",),
        ("regroup",),
        UNITS,
        1,
        goals=lambda _case, _subject: {"down_seconds": goal},
    )
    (row,) = rows(plan, "a", "regroup", [{"down_seconds": value} for value in runs])
    assert (row.goal, row.verdict) == (shown, verdict)
    assert list(table("example", [row]).columns[-1].cells) == [f"{shown} {verdict}"]


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
