"""The benchmark of the command line measures what it says."""

from __future__ import annotations

import subprocess

import pytest

from bench import command_line
from bench.command_line import (
    DEBUG,
    GOALS,
    HELP,
    IMPORT,
    PROGRAMS,
    PYTHON,
    UNITS,
    answer,
    measure,
    plan,
    seconds_of,
    settings,
    shows_all,
)
from regroup.diagnosis.rank_stacks import WorkerAnswer, fold, stack_lines
from regroup_trainer.protocol.agent_messages import WorkerStacks


@pytest.mark.parametrize("case", [HELP, IMPORT])
def test_a_run_has_the_time_of_ours_and_of_what_is_beside_it(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    ours, other = PROGRAMS[case]
    seconds = {ours: 3.0, other: 1.5, command_line.BARE: 0.5}
    monkeypatch.setattr(command_line, "seconds_of", lambda words: seconds[tuple(words)])
    values = measure(case, "regroup")
    assert values.keys() == UNITS.keys()
    assert values == {
        "seconds": 3.0,
        "beside_seconds": 1.5,
        "ratio": 2.0,
        "python_seconds": 0.5,
    }


def test_the_programs_are_those_that_users_start() -> None:
    for words in (PROGRAMS[HELP][0], *PROGRAMS[IMPORT]):
        assert seconds_of(words) > 0
    assert settings(HELP) == "help: kubectl-trainingjob --help, beside kubectl --help"


def test_a_program_that_fails_is_no_figure() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        seconds_of((*PYTHON, "raise SystemExit(1)"))


def test_each_goal_is_that_of_a_case() -> None:
    assert GOALS.keys() <= set(plan(quick=False).cases)
    assert [case for case in plan(quick=True).cases if case.startswith(DEBUG)] == ["debug of 8"]


def test_debug_counts_only_where_it_shows_all_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "ANSWER_SECONDS", 0.0)
    texts = {pod: answer(pod, ())[0] for pod in (f"gpt-w{number}-1" for number in range(4))}
    answers = [
        WorkerAnswer(pod, WorkerStacks.model_validate_json(text).ranks)
        for pod, text in texts.items()
    ]
    shown = "\n".join(stack_lines(fold("gpt", answers, all_threads=False), 80))
    assert "reduce (x.py:7)" in shown
    assert shows_all(shown, 4)
    assert not shows_all(shown, 5)
