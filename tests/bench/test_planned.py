"""The plan beside published measurements."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.planned import RUNS, PublishedRun, memory_table, throughput_table
from regroup.planning.choice import MODEL_ERROR

PAGE = Path(__file__).parents[2] / "docs/tasks/plan.md"
A100_RUNS = [run for run in RUNS if run.gpu == "a100-80"]


@pytest.mark.parametrize("run", [run for run in RUNS if run.gibibytes], ids=lambda run: run.nodes)
def test_memory_is_within_ten_percent_of_what_was_published(run: PublishedRun) -> None:
    assert run.gibibytes
    assert run.planned_bytes / 2**30 == pytest.approx(run.gibibytes, rel=0.1)


def test_the_error_of_comparisons_is_what_the_runs_on_one_kind_of_machine_show() -> None:
    ratios = [run.planned_tokens / run.tokens for run in A100_RUNS]
    assert max(ratios) / min(ratios) == pytest.approx(1 + MODEL_ERROR, abs=0.01)


@pytest.mark.parametrize("table", [memory_table, throughput_table])
def test_the_page_shows_the_tables_that_are_printed(table: object) -> None:
    assert callable(table)
    assert table() in PAGE.read_text()
