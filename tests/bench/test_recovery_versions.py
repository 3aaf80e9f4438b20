"""The benchmark of two versions: which files and options each has, and what is read of its run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import recovery
from bench.harness import Row
from bench.recovery_versions import CASES, METRICS, QUICK, REPEATED, means, options, run


def test_a_version_runs_its_own_benchmark(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()
    program = "import sys, pathlib; pathlib.Path('ran').write_text(' '.join(sys.argv[1:]))"
    (tmp_path / "bench" / "recovery.py").write_text(program)
    run(tmp_path, ["--quick"])
    assert (tmp_path / "ran").read_text() == "--quick"


@pytest.mark.parametrize("case", CASES)
def test_each_case_is_one_of_the_benchmark_of_recoveries(case: str) -> None:
    plan = recovery.plan(quick=False)
    given = options(case)
    named = dict(zip(given[::2], given[1::2], strict=True))
    assert named["--case"] in plan.cases
    assert named["--subject"] in plan.subjects
    assert named["--runs"] == str(REPEATED)


def test_a_quick_run_is_one_of_that_benchmark() -> None:
    assert recovery.plan(quick=True).cases == (QUICK,)
    assert options(QUICK) == ["--quick"]


def test_what_a_version_did_not_measure_is_left_open() -> None:
    row = Row("join", "regroup", "down_seconds", "s", min=0.1, median=0.2, max=0.3, runs=REPEATED)
    other = Row("join", "regroup", "loss_difference", "ratio", 0, 0, 0, REPEATED)
    found = means({"rows": [vars(row), vars(other)]})
    assert found == {**dict.fromkeys(METRICS), "down_seconds": 0.2}
