"""The benchmark of checkpoints runs; what it measures is for a quiet machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.checkpoint import QUICK_CASE, SUBJECTS, main, ranks_of


@pytest.mark.long
def test_a_quick_run_measures_every_subject(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "checkpoint.json").read_text())["rows"]
    assert {(row["case"], row["subject"], row["metric"]) for row in rows} == {
        (QUICK_CASE, subject, metric)
        for subject in SUBJECTS
        for metric in ("lost_seconds", "blocking_seconds", "durable_seconds")
    }


def test_ranks_occupy_half_of_the_cores_or_all() -> None:
    assert [ranks_of("512MiB-half-cores", cores) for cores in (1, 2, 5)] == [1, 1, 2]
    assert ranks_of("512MiB-all-cores", 2) == 2
