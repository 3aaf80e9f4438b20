"""The benchmark of the overhead measures every subject that is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import overhead


@pytest.mark.long
def test_a_quick_run_reports_time_and_memory_over_a_bare_loop(tmp_path: Path) -> None:
    done = CliRunner().invoke(overhead.main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    rows = json.loads((tmp_path / "overhead.json").read_text())["rows"]
    found = {(row["subject"], row["metric"]) for row in rows}
    assert {("regroup", "ms_per_step_over_bare"), ("regroup", "rss_mb_over_bare")} <= found
    assert {subject for subject, _ in found} == {"regroup", "accelerate"}
