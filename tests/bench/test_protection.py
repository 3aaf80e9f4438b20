"""The protection benchmark runs: two trainings take turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.protection import main


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_quick_run_reports_the_ratio(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["--quick", "--output", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (row,) = json.loads((tmp_path / "protection.json").read_text())["rows"]
    assert row["metric"] == "step_time_ratio"
    assert 0.1 < row["median"] < 10
